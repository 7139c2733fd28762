// SPDX-License-Identifier: Apache-2.0
// Convolution by matrix products of four warps: from results to global memory.
#pragma once

#include "coldforge/conv2d_warpgroup_compute.cuh"

namespace coldforge {

// Results go to memory through shared memory: of each output channel a run of neighbouring elements, written
// a few at a time into the channel's ring, in which a byte lies where it does in G::RING bytes of memory.
// Only whole lines of 128 bytes leave before the run ends: memory takes a line in two pieces at almost twice
// the cost.
//
// Ordinary stores beat the copy engine here: each of its copies is begun by one lane after the other, some
// ten instructions for 256 bytes, where 32 lanes store 512 with seven.

// Writes the results of a warp of a consumer into the rings.
template <class G>
struct ResultWriter {
  using T = typename G::Element;
  static constexpr u32 SIZE = sizeof(T), MASK = G::RING - 1;

  const Conv2dSizes& sizes;
  unsigned char* slots[2];  // the rings of this lane's two channels
  u32 low;                  // where the lane's first element of the first goes, but for 2^32
  u32 written;              // bytes that are written of every channel
  bool in_pairs;

  __device__ __forceinline__ ResultWriter(typename G::Shared& shared, const Conv2dSizes& sizes)
      : sizes(sizes) {
#pragma unroll
    for (int row = 0; row < 2; ++row) slots[row] = ring_of(shared, static_cast<u32>(channel_of(row)));
  }

  // Starts a run at `to`, in the block's first channel; all pieces of it but the last are of an even number
  // of elements where `even`.
  __device__ __forceinline__ void begin(const T* to, bool even) {
    const u32 first = static_cast<u32>(reinterpret_cast<u64>(to));
    in_pairs = even && first % (2 * SIZE) == 0 && plane() % (2 * SIZE) == 0;
    low = first + static_cast<u32>(channel_of(0)) * plane() + threadIdx.x % 4 * 2 * SIZE;
    written = 0;
  }

  // Writes the next elements of two channels, lane by lane as the matrix instructions hold them; those behind
  // the last legal one are overwritten by the next piece.
  __device__ __forceinline__ void write(const float (&values)[G::RUN / 2]) const {
    const u32 at[2] = {(low + written) & MASK, (low + plane() + written) & MASK};
    if (!in_pairs) {
      write_some<1, true>(at, values);
    } else if (__any_sync(0xffffffffu, max(at[0], at[1]) + G::RUN_BYTES > G::RING)) {
      write_some<2, true>(at, values);
    } else {
      write_some<2, false>(at, values);
    }
  }
  // The place of the next piece's element `number` of a channel.
  __device__ __forceinline__ T* place_of(typename G::Shared& shared, int channel, u32 number) const {
    const u32 own = threadIdx.x % 4 * 2 * SIZE,
              away = static_cast<u32>(channel - channel_of(0)) * plane() - own;
    return reinterpret_cast<T*>(ring_of(shared, static_cast<u32>(channel)) +
                                ((low + away + written + number * SIZE) & MASK));
  }
  __device__ __forceinline__ void advance(u32 count) { written += count * SIZE; }

 private:
  // Bytes of a channel, but for 2^32.
  __device__ __forceinline__ u32 plane() const {
    return static_cast<u32>(sizes.H_out) * static_cast<u32>(sizes.W_out) * SIZE;
  }
  static __device__ __forceinline__ unsigned char* ring_of(typename G::Shared& shared, u32 channel) {
    return shared.results[threadIdx.x / 128 - G::HELPERS / 4][channel];
  }

  template <int N, bool TURNS>
  __device__ __forceinline__ void write_some(const u32 (&at)[2], const float (&values)[G::RUN / 2]) const {
#pragma unroll
    for (u32 row = 0; row < 2; ++row) {
      unsigned char *low = slots[row] + at[row], *high = low - G::RING;
#pragma unroll
      for (u32 j = 0; j < G::RUN / 8; ++j) {
#pragma unroll
        for (u32 k = 0; k < 2; k += N) {
          const u32 further = (j * 8 + k) * SIZE;
          Vector<T, N> some;
#pragma unroll
          for (u32 i = 0; i < N; ++i) some.at[i] = from_float<T>(values[j * 4 + row * 2 + k + i]);
          store_vector<N>(
              reinterpret_cast<T*>((TURNS && at[row] >= G::RING - further ? high : low) + further), some);
        }
      }
    }
  }
};

// What a warp sends to memory, of some neighbouring channels of a consumer's.
template <class G>
struct ResultSender {
  using T = typename G::Element;
  static constexpr u32 SIZE = sizeof(T), MASK = G::RING - 1, LINE = 128, PIECE = 16;
  static constexpr u32 OWN = G::SENT_CHANNELS;
  // Whole lines that a piece of work can complete, and channels of which a warp sends that many at once.
  static constexpr u32 LINES = (G::RUN_BYTES + LINE - 1) / LINE, LANES = LINES * 8, CHANNELS = 32 / LANES;
  // Loads that are under way at once, where other warps than the consumer's send.
  static constexpr u32 AHEAD = G::SENDERS > 0 ? (OWN / CHANNELS < 8 ? OWN / CHANNELS : 8) : 1;

  u32 channel;           // the first of its own
  unsigned char* rings;  // of all channels
  u32 own_ring;          // the ring of the first channel that this lane sends, in bytes from `rings`
  u64 own;               // where that channel's run begins, and the lane's line behind it
  u64 first;             // where the run of the first channel of all begins
  u64 plane;             // bytes of a channel
  u32 written;           // bytes of every channel that were sent, or wait for the rest of their line
  int channels;          // that the block has

  // channel: the first of `OWN` channels, of those whose rings are at `rings`.
  __device__ __forceinline__ ResultSender(unsigned char* rings, u32 channel, int oc0,
                                          const Conv2dSizes& sizes)
      : channel(channel),
        rings(rings),
        own_ring(apart((channel + lane() / LANES) * G::RING)),
        plane(static_cast<u64>(sizes.H_out) * static_cast<u32>(sizes.W_out) * SIZE),
        channels(min(G::OC_TILE, G::C_OUT - oc0)) {}

  // Starts a run at `to`, in the block's first channel.
  __device__ __forceinline__ void begin(const T* to) {
    first = reinterpret_cast<u64>(to);
    own = first + (channel + lane() / LANES) * plane + lane() % LANES / 8 * LINE;
    written = 0;
  }

  // Sends what may leave of `count` more elements of each channel; all of it where the run ends.
  __device__ __forceinline__ void send(u32 count, bool ends) {
    const u32 bytes = count * SIZE;
    if (written < LINE || ends) {
      send_edges(bytes, ends);
    } else if (G::RUN_BYTES % LINE == 0 && count == G::RUN) {
      send_lines<true>(bytes);
    } else {
      send_lines<false>(bytes);
    }
    written += bytes;
  }

 private:
  static __device__ __forceinline__ u32 lane() { return threadIdx.x % 32; }

  // Sends the lines that `bytes` more bytes complete, of a few channels at a time; none of them has bytes
  // before the run. FULL: of each channel LINES.
  template <bool FULL>
  __device__ __forceinline__ void send_lines(u32 bytes) const {
    const int missing = static_cast<int>((lane() % LANES / 8 + 1) * LINE - bytes);
    u64 to = own + written;
#pragma unroll
    for (u32 i = 0; i < OWN / CHANNELS; i += AHEAD) {
      if constexpr (AHEAD == 1) {
        const u32 low = static_cast<u32>(to), at = (low & ~(LINE - 1)) | lane() % 8 * PIECE;
        int before = FULL ? missing : static_cast<int>(low % LINE);
        if (!G::WHOLE_OC_TILES && !has(lane() / LANES + i * CHANNELS)) before = -1 - static_cast<int>(LINE);
        move_result<G::Config::STREAMING>(reinterpret_cast<void*>((to & 0xffffffff00000000u) | at),
                                          rings + (own_ring + (at & MASK)) + i * (CHANNELS * G::RING), before,
                                          missing);
        to += CHANNELS * plane;
      } else {
        send_some<FULL>(to, i, missing);
        to += AHEAD * CHANNELS * plane;
      }
    }
  }

  // Sends lines of AHEAD groups of channels from the `begin`-th on: loaded together, so that no store waits
  // for its load alone.
  template <bool FULL>
  __device__ __forceinline__ void send_some(u64 to, u32 begin, int missing) const {
    uint4 pieces[AHEAD];
    u64 places[AHEAD];
    bool leaves[AHEAD];
#pragma unroll
    for (u32 i = 0; i < AHEAD; ++i) {
      const u64 place = to + i * CHANNELS * plane;
      const u32 low = static_cast<u32>(place), at = (low & ~(LINE - 1)) | lane() % 8 * PIECE;
      leaves[i] = (FULL || static_cast<int>(low % LINE) >= missing) &&
                  (G::WHOLE_OC_TILES || has(lane() / LANES + (begin + i) * CHANNELS));
      places[i] = (place & 0xffffffff00000000u) | at;
      const unsigned char* from = rings + (own_ring + (at & MASK)) + (begin + i) * (CHANNELS * G::RING);
      if (leaves[i]) pieces[i] = *reinterpret_cast<const uint4*>(from);
    }
#pragma unroll
    for (u32 i = 0; i < AHEAD; ++i) {
      uint4* const place = reinterpret_cast<uint4*>(places[i]);
      if (!leaves[i]) continue;
      if constexpr (G::Config::STREAMING) {
        __stcs(place, pieces[i]);
      } else {
        *place = pieces[i];
      }
    }
  }

  // Sends what may leave where the run begins or ends in the middle of a line, a channel at a time.
  __device__ __forceinline__ void send_edges(u32 bytes, bool ends) const {
    u64 begin = first + channel * plane;
    const unsigned char* ring = rings + channel * G::RING;
#pragma unroll 1
    for (u32 number = 0; number < OWN && has(number); ++number) {
      const u64 next = begin + written + bytes;
      const u64 low = max(begin, (begin + written) & ~static_cast<u64>(LINE - 1)),
                stop = ends ? next : next & ~static_cast<u64>(LINE - 1);
#pragma unroll 1
      for (u64 at = (low & ~static_cast<u64>(PIECE - 1)) + lane() * PIECE; at < stop; at += 32 * PIECE) {
        const unsigned char* from = ring + (static_cast<u32>(at) & MASK);
        if (at >= low && at + PIECE <= stop) {
          move_result<G::Config::STREAMING>(reinterpret_cast<void*>(at), from, 0, 0);
        } else {
#pragma unroll
          for (u32 i = 0; i < PIECE; i += SIZE) {
            if (at + i >= low && at + i < stop)
              *reinterpret_cast<T*>(at + i) = *reinterpret_cast<const T*>(from + i);
          }
        }
      }
      begin += plane;
      ring += G::RING;
    }
  }
  __device__ __forceinline__ bool has(u32 number) const {
    return G::WHOLE_OC_TILES || static_cast<int>(channel + number) < channels;
  }
};

}  // namespace coldforge
