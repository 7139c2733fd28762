// SPDX-License-Identifier: Apache-2.0
// Convolution by matrix products of four warps: from results to global memory.
#pragma once

#include "coldforge/conv2d_warpgroup_compute.cuh"

namespace coldforge {

// What a warp sends to memory of its 16 channels: for each a run of neighbouring elements, written a few at a
// time into the channel's ring in shared memory, and sent from there. Only whole lines of 128 bytes leave
// before the run ends: memory takes a line in two pieces at almost twice the cost.
//
// Ordinary stores beat the copy engine here: each of its copies is begun by one lane after the other, some
// ten instructions for 256 bytes, where 32 lanes store 512 with seven.
template <class G>
struct ResultStream {
  using T = typename G::Element;
  static constexpr u32 SIZE = sizeof(T), MASK = G::RING - 1, LINE = 128, PIECE = 16;
  // Whole lines that a piece of work can complete, and channels of which a warp sends that many at once.
  static constexpr u32 LINES = (G::RUN_BYTES + LINE - 1) / LINE, LANES = LINES * 8, CHANNELS = 32 / LANES;

  unsigned char* slots[2];  // the rings of this lane's two channels as it holds results
  u32 lows[2];              // where its first element goes, but for 2^32
  unsigned char* own_slot;  // the ring of the first channel that this lane sends
  u64 own;                  // where that channel's run begins, and the lane's line behind it
  u64 first;                // where the block's first channel's run begins
  u64 plane;                // bytes of a channel
  u32 written;              // bytes that are written of every channel
  int channels;
  bool in_pairs;

  __device__ __forceinline__ ResultStream(typename G::Shared& shared, int oc0, const Conv2dSizes& sizes)
      : own_slot(ring_of(shared, warp_channel() + lane() / LANES)),
        plane(static_cast<u64>(sizes.H_out) * static_cast<u32>(sizes.W_out) * SIZE),
        channels(min(G::OC_TILE, G::C_OUT - oc0)) {
#pragma unroll
    for (int row = 0; row < 2; ++row) slots[row] = ring_of(shared, static_cast<u32>(channel_of(row)));
  }

  // Starts a run at `to`, in the block's first channel; all pieces of it but the last are of an even number
  // of elements where `even`.
  __device__ __forceinline__ void begin(const T* to, bool even) {
    first = reinterpret_cast<u64>(to);
    in_pairs = even && first % (2 * SIZE) == 0 && plane % (2 * SIZE) == 0;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      lows[row] = static_cast<u32>(first) + static_cast<u32>(channel_of(row)) * static_cast<u32>(plane) +
                  lane() % 4 * 2 * SIZE;
    }
    own = first + (warp_channel() + lane() / LANES) * plane + lane() % LANES / 8 * LINE;
    written = 0;
  }

  // Writes the next elements of two channels, lane by lane as the matrix instructions hold them; those behind
  // the last legal one are overwritten by the next piece.
  __device__ __forceinline__ void write(const float (&values)[G::RUN / 2]) const {
    const u32 at[2] = {(lows[0] + written) & MASK, (lows[1] + written) & MASK};
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
    const u32 low = static_cast<u32>(first) + static_cast<u32>(channel) * static_cast<u32>(plane);
    return reinterpret_cast<T*>(ring_of(shared, static_cast<u32>(channel)) +
                                ((low + written + number * SIZE) & MASK));
  }

  // Sends what may leave of `count` more elements of each channel; all of it where the run ends.
  __device__ __forceinline__ void send(u32 count, bool ends) {
    const u32 bytes = count * SIZE;
    // The line in which the run begins may not have left yet: no byte before the run is ours.
    const bool begins = written < LINE;
    if (!begins && G::RUN_BYTES % LINE == 0 && count == G::RUN) {
      send_lines<true>(bytes);
    } else {
      send_lines<false>(bytes);
    }
    if (ends) send_rest(bytes);
    const bool in_pieces = (first | plane) % PIECE == 0;
    if ((begins && !in_pieces) || (ends && !(in_pieces && (written + bytes) % PIECE == 0)))
      send_singly(bytes, begins, ends);
    written += bytes;
  }

 private:
  static __device__ __forceinline__ u32 lane() { return threadIdx.x % 32; }
  static __device__ __forceinline__ u32 warp_channel() { return threadIdx.x % 128 / 32 * 16; }
  static __device__ __forceinline__ unsigned char* ring_of(typename G::Shared& shared, u32 channel) {
    return shared.results[threadIdx.x / 128 - 1][channel];
  }

  template <int N, bool TURNS>
  __device__ __forceinline__ void write_some(const u32 (&at)[2], const float (&values)[G::RUN / 2]) const {
#pragma unroll
    for (u32 row = 0; row < 2; ++row) {
#pragma unroll
      for (u32 j = 0; j < G::RUN / 8; ++j) {
#pragma unroll
        for (u32 k = 0; k < 2; k += N) {
          const u32 here = at[row] + (j * 8 + k) * SIZE;
          Vector<T, N> some;
#pragma unroll
          for (u32 i = 0; i < N; ++i) some.at[i] = from_float<T>(values[j * 4 + row * 2 + k + i]);
          store_vector<N>(reinterpret_cast<T*>(slots[row] + (TURNS ? here & MASK : here)), some);
        }
      }
    }
  }

  // Sends the lines that `bytes` more bytes complete, of a few channels at a time. FULL: of each channel
  // LINES, and none with bytes before the run.
  template <bool FULL>
  __device__ __forceinline__ void send_lines(u32 bytes) const {
    const u32 line = lane() % LANES / 8, piece = line * LINE + lane() % 8 * PIECE;
    u64 to = own + written;
#pragma unroll
    for (u32 i = 0; i < 16 / CHANNELS; ++i) {
      const u32 low = static_cast<u32>(to), before = low % LINE;
      bool leaves = FULL || (before + bytes >= (line + 1) * LINE && piece + written >= before);
      if (!G::WHOLE_OC_TILES) leaves = leaves && has(lane() / LANES + i * CHANNELS);
      const u32 at = (low & ~(LINE - 1)) | lane() % 8 * PIECE;
      store(to, at, own_slot + i * (CHANNELS * G::RING), leaves);
      to += CHANNELS * plane;
    }
  }
  // Sends the pieces of the line in which the run ends.
  __device__ __forceinline__ void send_rest(u32 bytes) const {
    u64 to = first + (warp_channel() + lane() / 8) * plane + written + bytes;
#pragma unroll 1
    for (u32 i = 0; i < 16; i += 4) {
      const u32 low = static_cast<u32>(to), before = low % LINE, piece = lane() % 8 * PIECE;
      const bool leaves = piece + PIECE <= before && piece + written + bytes >= before && has(lane() / 8 + i);
      const u32 at = (low & ~(LINE - 1)) | piece;
      store(to, at, slots[0] + static_cast<int>(lane() / 8 + i) * G::RING - channel_of(0) % 16 * G::RING,
            leaves);
      to += 4 * plane;
    }
  }
  // Stores a piece of a line of 128 bytes whose address ends with `at`.
  static __device__ __forceinline__ void store(u64 line, u32 at, const unsigned char* slot, bool leaves) {
    uint4 piece = {};
    if (leaves) piece = *reinterpret_cast<const uint4*>(slot + (at & MASK));
    const u64 to = (line & 0xffffffff00000000u) | at;
    store_result<G::Config::STREAMING>(reinterpret_cast<void*>(to), piece, leaves);
  }
  // Sends what lies beside whole pieces of 16 bytes, a lane for a channel.
  __device__ __forceinline__ void send_singly(u32 bytes, bool begins, bool ends) const {
    if (lane() >= 16 || !has(lane())) return;
    const u64 begin = first + (warp_channel() + lane()) * plane, end = begin + written + bytes;
    const u64 head = (begin + PIECE - 1) & ~static_cast<u64>(PIECE - 1),
              tail = end & ~static_cast<u64>(PIECE - 1);
    const unsigned char* slot = slots[0] + (static_cast<int>(lane()) - channel_of(0) % 16) * G::RING;
    if (begins) {
#pragma unroll 1
      for (u64 at = begin; at < min(head, end); at += SIZE) single(at, slot);
    }
    if (ends) {
#pragma unroll 1
      for (u64 at = max(begin, tail); at < end; at += SIZE) single(at, slot);
    }
  }
  static __device__ __forceinline__ void single(u64 at, const unsigned char* slot) {
    *reinterpret_cast<T*>(at) = *reinterpret_cast<const T*>(slot + (static_cast<u32>(at) & MASK));
  }
  __device__ __forceinline__ bool has(u32 channel) const {
    return G::WHOLE_OC_TILES || static_cast<int>(warp_channel() + channel) < channels;
  }
};

}  // namespace coldforge
