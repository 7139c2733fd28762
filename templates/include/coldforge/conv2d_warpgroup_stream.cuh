// SPDX-License-Identifier: Apache-2.0
// Convolution by matrix products of four warps: from results to global memory.
#pragma once

#include "coldforge/conv2d_warpgroup_compute.cuh"

namespace coldforge {

// Results go to memory through shared memory: of each output channel a run of neighbouring elements, written
// a few at a time into the channel's ring, from the place on that its first has in a line of 128 bytes. Only
// whole lines leave before the run ends: memory takes a line in two pieces at almost twice the cost. A line
// leaves once that of every channel is whole, of all of them at once.
//
// Ordinary stores beat the copy engine here: each of its copies is begun by one lane after the other, some
// ten instructions for 256 bytes, where 32 lanes store 512 with seven.

// Writes the results of a warp of a consumer into the rings.
template <class G>
struct ResultWriter {
  using T = typename G::Element;
  static constexpr u32 SIZE = sizeof(T), MASK = G::RING - 1;

  const Conv2dSizes& sizes;
  unsigned char* rings[2];  // of this lane's two channels
  u32 start;                // the address of the run of the block's first channel, but for 2^32
  u32 from[2];              // where the lane's first elements go in rings, but for what is written
  bool in_pairs;

  __device__ __forceinline__ ResultWriter(typename G::Shared& shared, const Conv2dSizes& sizes)
      : sizes(sizes), start(0), from{0, 0}, in_pairs(false) {
#pragma unroll
    for (int row = 0; row < 2; ++row) rings[row] = ring_of(shared, static_cast<u32>(channel_of(row)));
  }

  // Starts a run at `to`, in the block's first channel; all pieces of it but the last are of an even number
  // of elements where `even`.
  __device__ __forceinline__ void begin(const T* to, bool even) {
    start = static_cast<u32>(reinterpret_cast<u64>(to));
    in_pairs = even && start % (2 * SIZE) == 0 && plane() % (2 * SIZE) == 0;
#pragma unroll
    for (int row = 0; row < 2; ++row)
      from[row] = start_of(static_cast<u32>(channel_of(row))) + threadIdx.x % 4 * 2 * SIZE;
  }

  // Writes the next elements of two channels, lane by lane as the matrix instructions hold them; those behind
  // the last legal one are overwritten by the next piece. `written`: bytes of every channel that are there.
  __device__ __forceinline__ void write(const float (&values)[G::RUN / 2], u32 written) const {
    if (in_pairs) {
      write_some<2>(values, written);
    } else {
      write_some<1>(values, written);
    }
  }
  // The place of the next piece's element `number` of a channel.
  __device__ __forceinline__ T* place_of(typename G::Shared& shared, int channel, u32 number,
                                         u32 written) const {
    const u32 at = start_of(static_cast<u32>(channel)) + written + number * SIZE;
    return reinterpret_cast<T*>(ring_of(shared, static_cast<u32>(channel)) + (at & MASK));
  }

 private:
  // Bytes of a channel, but for 2^32.
  __device__ __forceinline__ u32 plane() const {
    return static_cast<u32>(sizes.H_out) * static_cast<u32>(sizes.W_out) * SIZE;
  }
  // Where a channel's run begins in its ring: as it does in a line.
  __device__ __forceinline__ u32 start_of(u32 channel) const { return (start + channel * plane()) % G::LINE; }
  static __device__ __forceinline__ unsigned char* ring_of(typename G::Shared& shared, u32 channel) {
    return shared.results[threadIdx.x / 128 - G::GATHERERS / 4][channel];
  }

  // Each place is cut to the ring by itself: whether a piece turns in it would be a branch, taken half of the
  // time.
  template <int N>
  __device__ __forceinline__ void write_some(const float (&values)[G::RUN / 2], u32 written) const {
#pragma unroll
    for (u32 row = 0; row < 2; ++row) {
#pragma unroll
      for (u32 j = 0; j < G::RUN / 8; ++j) {
#pragma unroll
        for (u32 k = 0; k < 2; k += N) {
          Vector<T, N> some;
#pragma unroll
          for (u32 i = 0; i < N; ++i) some.at[i] = from_float<T>(values[j * 4 + row * 2 + k + i]);
          const u32 place = (from[row] + written + (j * 8 + k) * SIZE) & MASK;
          store_vector<N>(reinterpret_cast<T*>(rings[row] + place), some);
        }
      }
    }
  }
};

// What a warp sends to memory, of its channels of a consumer's. Places in a run are counted in bytes from the
// line on in which a channel's run begins.
template <class G>
struct ResultSender {
  using T = typename G::Element;
  static constexpr u32 SIZE = sizeof(T), MASK = G::RING - 1, LINE = G::LINE, PIECE = 16;
  // Lanes that move a channel's line; channels at once, and how often for the 16 of a warp.
  static constexpr u32 LANES = LINE / PIECE, CHANNELS = 32 / LANES, TIMES = 16 / CHANNELS;

  u32 channel;           // the first that this lane moves
  unsigned char* rings;  // of the lane's channels: its piece of their first lines
  u64 own;               // where the run of that channel begins
  u64 plane;             // bytes of a channel
  u32 sent;              // places that are done
  int channels;          // that the block has
  bool follows;          // a line in which a run begins in the middle is another's

  // first: of the warp's channels, of those whose rings are at `rings`.
  __device__ __forceinline__ ResultSender(unsigned char* rings, u32 first, int oc0, const Conv2dSizes& sizes)
      : channel(first + lane() / LANES),
        rings(rings + channel * G::RING + lane() % LANES * PIECE),
        own(0),
        plane(static_cast<u64>(sizes.H_out) * static_cast<u32>(sizes.W_out) * SIZE),
        sent(0),
        channels(min(G::OC_TILE, G::C_OUT - oc0)),
        follows(false) {}

  // Starts a run at `to`, in the block's first channel.
  __device__ __forceinline__ void begin(const T* to, bool after_another) {
    own = reinterpret_cast<u64>(to) + channel * plane;
    sent = 0;
    follows = after_another;
  }

  // Sends the lines that are whole in every channel. `written`: bytes of each that are there.
  __device__ __forceinline__ void send(u32 written) {
#pragma unroll 1
    while (sent + LINE <= written) {
      if (sent > 0) {
        send_line([](u64) { return true; });
      } else if (G::WHOLE_LINES && follows) {
        send_line([&](u64 begin) { return begin % LINE == 0; });
      } else {
        send_part(written);
      }
    }
  }
  // Sends what is left of a run of `length` bytes of each channel.
  __device__ __forceinline__ void end(u32 length) {
#pragma unroll 1
    while (sent < length + LINE) send_part(length);
  }
  // The same of lines that begin in the run, to their end, as far as which more is written.
  __device__ __forceinline__ void end_whole(u32 length) {
#pragma unroll 1
    while (sent < length + LINE)
      send_line([&](u64 begin) {
        return line_of(begin + sent) < begin + length && (sent > 0 || !follows || begin % LINE == 0);
      });
  }

 private:
  static __device__ __forceinline__ u32 lane() { return threadIdx.x % 32; }
  __device__ __forceinline__ bool has(u32 time) const {
    return G::WHOLE_OC_TILES || static_cast<int>(channel + time * CHANNELS) < channels;
  }
  // Where the line begins in which an address is.
  static __device__ __forceinline__ u64 line_of(u64 address) { return address & ~static_cast<u64>(LINE - 1); }
  // The lane's piece in the line at a place, of the channel whose run begins at `begin`.
  static __device__ __forceinline__ u64 piece_of(u64 begin, u32 place) {
    return line_of(begin + place) | lane() % LANES * PIECE;
  }

  // Sends the next line, which is whole, of every channel of which `owns` says so by where its run begins.
  template <class Owns>
  __device__ __forceinline__ void send_line(const Owns& owns) {
    const unsigned char* from = rings + (sent & MASK);
    u64 begin = own;
#pragma unroll
    for (u32 time = 0; time < TIMES; ++time) {
      move_result<G::Config::STREAMING>(reinterpret_cast<void*>(piece_of(begin, sent)),
                                        from + time * (CHANNELS * G::RING), has(time) && owns(begin) ? 1 : 0,
                                        1);
      begin += CHANNELS * plane;
    }
    sent += LINE;
  }

  // Sends what there is of the next line of every channel.
  __device__ __forceinline__ void send_part(u32 length) {
    const unsigned char* from = rings + (sent & MASK);
    u64 begin = own;
#pragma unroll 1
    for (u32 time = 0; time < TIMES && has(time); ++time) {
      const u64 first = G::WHOLE_LINES && follows ? line_of(begin + LINE - 1) : begin, stop = begin + length;
      const u64 at = piece_of(begin, sent);
      if (at >= first && at + PIECE <= stop) {
        move_result<G::Config::STREAMING>(reinterpret_cast<void*>(at), from, 0, 0);
      } else {
#pragma unroll
        for (u32 i = 0; i < PIECE; i += SIZE) {
          if (at + i >= first && at + i < stop)
            *reinterpret_cast<T*>(at + i) = *reinterpret_cast<const T*>(from + i);
        }
      }
      begin += CHANNELS * plane;
      from += CHANNELS * G::RING;
    }
    sent += LINE;
  }
};

}  // namespace coldforge
