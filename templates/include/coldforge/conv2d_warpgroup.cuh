// SPDX-License-Identifier: Apache-2.0
// Convolution by matrix products of four warps, on Hopper: 64 channels by runs of pixels, whose windows the
// tensor cores read in place. Some warps gather input while others multiply.
#pragma once

#include "coldforge/conv2d_warpgroup_plain.cuh"

namespace coldforge {

// The tiles of a block: each at a distance from the one before, or neighbours.
struct TileWalk {
  u64 index, end, step;

  template <class G>
  static __device__ __forceinline__ TileWalk of(const Conv2dSizes& sizes) {
    const u64 blocks = gridDim.x / G::OC_TILES, block = blockIdx.x / G::OC_TILES;
    const u64 count = Conv2dTensorTile<G>::count(sizes);
    if (G::Config::NEIGHBOURS) return {block * count / blocks, (block + 1) * count / blocks, 1};
    return {block, count, blocks};
  }
  __device__ __forceinline__ bool more() const { return index + step < end; }
  __device__ __forceinline__ void next() { index += step; }
};

// Four warps that fill stage after stage with tiles of input.
template <class G>
__device__ __forceinline__ void gather_tiles(const typename G::Element* x, const Conv2dSizes& sizes,
                                             typename G::Shared& shared, TileWalk walk) {
  u32 stage = 0, phase = 0;
#pragma unroll 1
  for (int turn = 0;; turn ^= 1) {
    const Conv2dTensorTile<G> tile(walk.index, sizes);
    const GatheredTile<G> pixels(x, tile, sizes);
    const SplitScale scale = scale_of<G>(shared, pixels, turn);
    mbarrier_wait(&shared.empty[stage], phase);
    fill_stage<G>(shared.stages[stage], pixels, scale);
    publish_shared();
    mbarrier_arrive(&shared.full[stage]);
    if (!walk.more()) break;
    walk.next();
    if (++stage == G::STAGES) {
      stage = 0;
      phase ^= 1;
    }
  }
}

// Four warps that multiply.
template <class G, class Epilogue>
struct Conv2dConsumer {
  using T = typename G::Element;

  const T* x;
  const T* weight;
  T* y;
  const Conv2dSizes& sizes;
  const Epilogue& epilogue;
  typename G::Shared& shared;
  int oc0;
  ResultStream<G> stream;
  // Of the thread's two channels: what makes v, or what the first operations of the chain make of v, of a
  // sum.
  float factor[2], shift[2];
  bool exact_weights;  // all bear their scales, and those factors and shifts the range of a float

  __device__ __forceinline__ Conv2dConsumer(const T* x, const T* weight, T* y, const Conv2dSizes& sizes,
                                            const Epilogue& epilogue, typename G::Shared& shared, int oc0,
                                            bool exact)
      : x(x),
        weight(weight),
        y(y),
        sizes(sizes),
        epilogue(epilogue),
        shared(shared),
        oc0(oc0),
        stream(shared, oc0, sizes) {
    exact_weights = __all_sync(0xffffffffu, fold() && exact);
  }

  // Computes this group's rows of a tile. Where the image is taken in whole rows they are one run of memory,
  // which goes on from the tile before unless this one `begins` it, and into the next unless it `ends`.
  __device__ __forceinline__ void compute(const Conv2dTensorTile<G>& tile, const OperandStage<G>& stage,
                                          const RunWeights<G>& weights, bool begins, bool ends) {
    // The same in all lanes; but for the exchange the compiler could not tell.
    const int group = G::CONSUMERS == 1 ? 0 : static_cast<int>(held(threadIdx.x / 128 - 1));
    const int first = group * G::OWN_ROWS, last = min(tile.pixels / tile.width, first + G::OWN_ROWS);
    const bool whole = tile.width == sizes.W_out, even = sizes.W_out % 2 == 0;
    const i64 plane = static_cast<i64>(sizes.H_out) * sizes.W_out;
    T* const to = y + (static_cast<i64>(tile.n) * G::C_OUT + oc0) * plane +
                  static_cast<i64>(tile.oy) * sizes.W_out + tile.ox;
    const float factors[2] = {factor[0] * stage.unscale, factor[1] * stage.unscale};
    const bool all = exact_weights && stage.exact, some = exact_weights && stage.usable;
    Place place = {first, 0};
#pragma unroll 1
    while (place.row < last) {
      const Place next = place.next(tile.width);
      RunSums<G> sums;
      begin_run<G>(sums, stage.operands, weights, place.row * G::PITCH + place.column);
      warpgroup_wait<0>();
      finish(sums, factors);
      if (place.column == 0 && (!whole || (begins && place.row == first)))
        stream.begin(to + static_cast<i64>(place.row) * sizes.W_out, even);
      // What was sent before is read.
      __syncwarp();
      stream.write(sums.high);
      const int count = min(G::RUN, tile.width - place.column);
      if (!all) repair(tile, stage, place, count, some);
      __syncwarp();
      stream.send(static_cast<u32>(count), whole ? ends && next.row >= last : next.column == 0);
      place = next;
    }
  }

 private:
  // Of a run in a tile.
  struct Place {
    int row, column;

    __device__ __forceinline__ Place next(int width) const {
      return column + G::RUN < width ? Place{row, column + G::RUN} : Place{row + 1, 0};
    }
  };

  // Sets factors and shifts; returns whether they are in the range of a float with all scales of pixels.
  __device__ __forceinline__ bool fold() {
    bool fit = true;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      double a, b;
      epilogue.affine(a, b, oc0 + min(channel_of(row), stream.channels - 1));
      factor[row] = static_cast<float>(a * shared.unscale[channel_of(row)]);
      shift[row] = static_cast<float>(a * shared.bias[channel_of(row)] + b);
      const float size = fabsf(factor[row]);
      fit = fit && (size == 0.0f || (size >= 0x1p-64f && size <= 0x1p64f)) && fabsf(shift[row]) <= 0x1p126f;
    }
    return fit;
  }

  // From sums to results.
  __device__ __forceinline__ void finish(RunSums<G>& sums, const float (&factors)[2]) const {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int channel = oc0 + min(channel_of(row), stream.channels - 1);
#pragma unroll
      for (int i = 0; i < G::RUN / 4; ++i) {
        const int at = i / 2 * 4 + row * 2 + i % 2;
        float value = sums.high[at];
        if constexpr (G::PARTS == 2) value = fmaf(sums.cross[at], 1.0f / G::LOW_SCALE, value);
        sums.high[at] = epilogue.rest(fmaf(value, factors[row], shift[row]), channel);
      }
    }
  }

  // Computes anew, in plain arithmetic, the pixels of a run that meet input which does not bear the tile's
  // scale; all where it bears none. A lane takes a pixel, of eight of the warp's channels at a time.
  __device__ __forceinline__ void repair(const Conv2dTensorTile<G>& tile, const OperandStage<G>& stage,
                                         const Place& place, int count, bool some) const {
    const int lane = static_cast<int>(threadIdx.x) % 32,
              begin = static_cast<int>(threadIdx.x) % 128 / 32 * 16;
    const PlainPixels<G> pixels(x, weight, tile, oc0, sizes);
    __syncwarp();
#pragma unroll 1
    for (int first = 0; first < count; first += 32) {
      const int own = min(first + lane, count - 1);
      const bool bad =
          first + lane < count && (!some || meets_unfit<G>(stage, place.row, place.column + own));
      if (!__any_sync(0xffffffffu, bad)) continue;
#pragma unroll 1
      for (int eight = begin; eight < begin + 16; eight += 8) {
        float sums[8];
        pixels.sum(sums, eight, place.row, place.column + own);
#pragma unroll
        for (int k = 0; k < 8; ++k) {
          if (bad && eight + k < stream.channels)
            *stream.place_of(shared, eight + k, static_cast<u32>(own)) =
                from_float<T>(epilogue(sums[k] + shared.bias[eight + k], oc0 + eight + k));
        }
      }
    }
  }
};

// Multiplies tile after tile as they come.
template <class G, class Epilogue>
__device__ __forceinline__ void consume_tiles(Conv2dConsumer<G, Epilogue>& consumer,
                                              const RunWeights<G>& weights, const Conv2dSizes& sizes,
                                              typename G::Shared& shared, TileWalk walk) {
  u32 stage = 0, phase = 0;
  bool begins = true;
#pragma unroll 1
  while (true) {
    const Conv2dTensorTile<G> tile(walk.index, sizes);
    const bool more = walk.more();
    walk.next();
    // Rows of one image follow each other where a tile is as wide as they are.
    const bool goes_on = G::Config::NEIGHBOURS && G::CONSUMERS == 1 && more &&
                         Conv2dTensorTile<G>(walk.index, sizes).n == tile.n &&
                         consumer.stream.written < 1u << 30;
    mbarrier_wait(&shared.full[stage], phase);
    // Some lanes may have seen it before others.
    __syncwarp();
    consumer.compute(tile, shared.stages[stage], weights, begins, !goes_on);
    begins = !goes_on;
    if (!more) break;
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(&shared.empty[stage]);
    if (++stage == G::STAGES) {
      stage = 0;
      phase ^= 1;
    }
  }
}

// A block's whole work.
template <class G, class Epilogue>
__device__ __forceinline__ void conv2d_warpgroup(const typename G::Element* x,
                                                 const typename G::Element* weight,
                                                 const typename G::Element* bias, typename G::Element* y,
                                                 const Conv2dSizes& sizes, const Epilogue& epilogue,
                                                 typename G::Shared& shared) {
  const int oc0 = static_cast<int>(blockIdx.x % G::OC_TILES) * G::OC_TILE;
  const TileWalk walk = TileWalk::of<G>(sizes);
  if (walk.index >= walk.end) return;
  if (threadIdx.x == 0) {
#pragma unroll
    for (int stage = 0; stage < G::STAGES; ++stage) {
      mbarrier_init(&shared.full[stage], GATHERERS);
      mbarrier_init(&shared.empty[stage], G::CONSUMERS * 4);
    }
    fence_barrier_init();
  }
  const bool mine = split_weights<G>(shared, weight, bias, oc0);
  const bool exact_weights = __syncthreads_and(mine) != 0;
  if (threadIdx.x < GATHERERS) {
    give_registers<G::Config::GATHER_REGISTERS>();
    gather_tiles<G>(x, sizes, shared, walk);
  } else {
    take_registers<G::Config::CONSUMER_REGISTERS>();
    const Held<Epilogue> kept(epilogue);
    const RunWeights<G> weights(shared);
    Conv2dConsumer<G, Epilogue> consumer(x, weight, y, sizes, kept.get(), shared, oc0, exact_weights);
    __syncwarp();
    // Weights are read: the stages are free.
    if (threadIdx.x % 32 == 0) {
#pragma unroll
      for (int stage = 0; stage < G::STAGES; ++stage) mbarrier_arrive(&shared.empty[stage]);
    }
    consume_tiles<G>(consumer, weights, sizes, shared, walk);
  }
}

}  // namespace coldforge
