// SPDX-License-Identifier: Apache-2.0
// Convolution by matrix products of four warps, on Hopper: 64 channels by runs of pixels, whose windows the
// tensor cores read in place. Some warps gather input while others multiply.
#pragma once

#include "coldforge/conv2d_warpgroup_plain.cuh"

namespace coldforge {

// The tiles of a consumer: each at a distance from the one before, or neighbours. Of a block's consumers each
// has as many as the one before, or one less.
template <class G>
struct TileWalk {
  u64 all, each, odd;  // consumers of the grid; tiles of each, and how many consumers have one more

  __device__ __forceinline__ explicit TileWalk(const Conv2dSizes& sizes) {
    const u64 count = Conv2dTensorTile<G>::count(sizes);
    all = gridDim.x / G::OC_TILES * G::CONSUMERS;
    each = count / all;
    odd = count - each * all;
  }
  __device__ __forceinline__ bool has(u32 consumer, u32 round) const {
    return round < each + (number_of(consumer) < odd ? 1 : 0);
  }
  __device__ __forceinline__ u64 at(u32 consumer, u32 round) const {
    const u64 own = number_of(consumer);
    return G::Config::NEIGHBOURS ? own * each + min(own, odd) + round : own + round * all;
  }

 private:
  static __device__ __forceinline__ u64 number_of(u32 consumer) {
    return static_cast<u64>(blockIdx.x / G::OC_TILES) * G::CONSUMERS + consumer;
  }
};

// Where the next tile is, of those that go round all stages.
template <class G>
struct StageTurn {
  u32 stage, phase;

  __device__ __forceinline__ explicit StageTurn(u32 number)
      : stage(number % G::STAGES), phase(number / G::STAGES % 2) {}
};

// Warps that fill stage after stage, with each consumer's next tile in turn.
template <class G>
__device__ __forceinline__ void gather_tiles(const typename G::Element* x, const Conv2dSizes& sizes,
                                             typename G::Shared& shared) {
  const TileWalk<G> walk(sizes);
  const u32 warp = uniform(threadIdx.x / 32);
  const auto has = [&](u32 number) { return walk.has(number % G::CONSUMERS, number / G::CONSUMERS); };
  const auto tile_of = [&](u32 number) {
    return Conv2dTensorTile<G>(walk.at(number % G::CONSUMERS, number / G::CONSUMERS), sizes);
  };
  if (has(0)) {
    const Conv2dTensorTile<G> tile = tile_of(0);
#pragma unroll 1
    for (u32 unit = warp; unit < GatherUnit<G>::COUNT; unit += G::GATHERERS)
      fetch_unit<G>(shared, x, GatherUnit<G>(unit), tile, sizes);
    cp_async_commit();
  }
  mbarrier_wait(&shared.weights_read, 0);
  __syncwarp();
#pragma unroll 1
  for (u32 number = 0; has(number); ++number) {
    cp_async_wait<0>();
    // What the warp's other lanes have copied.
    __syncwarp();
    const SplitScale scale = scale_of<G>(shared, warp, static_cast<int>(number % 2));
    const StageTurn<G> turn(number);
    OperandStage<G>& stage = shared.stages[turn.stage];
    mbarrier_wait(&shared.empty[turn.stage], turn.phase ^ 1);
    __syncwarp();
    const bool more = has(number + 1);
    const Conv2dTensorTile<G> next = tile_of(more ? number + 1 : number);
#pragma unroll 1
    for (u32 i = warp; i < GatherUnit<G>::COUNT; i += G::GATHERERS) {
      const GatherUnit<G> unit(i);
      fill_unit<G>(stage, shared, unit, scale);
      __syncwarp();
      if (more) fetch_unit<G>(shared, x, unit, next, sizes);
    }
    cp_async_commit();
    if (threadIdx.x == 0) {
      stage.unscale = scale.unscale;
      stage.usable = scale.usable;
      stage.exact = scale.exact;
    }
    publish_shared();
    mbarrier_arrive(&shared.full[turn.stage]);
  }
}

// Four warps that multiply.
template <class G, class Epilogue>
struct Conv2dConsumer {
  using T = typename G::Element;

  const T* x;
  const T* weight;
  const Conv2dSizes& sizes;
  const Epilogue& epilogue;
  const RunWeights<G>& weights;
  typename G::Shared& shared;
  int oc0, channels;
  ResultWriter<G> writer;
  ResultSender<G> sender;
  u32 own;      // the consumer's number
  u32 written;  // bytes of every channel since the last run in memory began
  const OperandStage<G>* stage;
  // Of the thread's two channels: what makes v, or what the first operations of the chain make of v, of a
  // sum; and of a sum of the tile.
  float factor[2], shift[2], factors[2];
  bool all, some;      // whether all sums of the tile are exact, or some
  bool exact_weights;  // all bear their scales, and those factors and shifts the range of a float

  __device__ __forceinline__ Conv2dConsumer(const T* x, const T* weight, const Conv2dSizes& sizes,
                                            const Epilogue& epilogue, const RunWeights<G>& weights,
                                            typename G::Shared& shared, int oc0, u32 own, bool exact)
      : x(x),
        weight(weight),
        sizes(sizes),
        epilogue(epilogue),
        weights(weights),
        shared(shared),
        oc0(oc0),
        channels(min(G::OC_TILE, G::C_OUT - oc0)),
        writer(shared, sizes),
        sender(shared.results[own][0], threadIdx.x % 128 / 32 * 16, oc0, sizes),
        own(own),
        written(0) {
    exact_weights = __all_sync(0xffffffffu, fold() && exact);
  }

  // Computes all of its tiles.
  __device__ __forceinline__ void go(T* y) {
    const TileWalk<G> walk(sizes);
    const i64 plane = static_cast<i64>(sizes.H_out) * sizes.W_out;
    bool begins = true;
#pragma unroll 1
    for (u32 round = 0; walk.has(own, round); ++round) {
      const Conv2dTensorTile<G> tile(walk.at(own, round), sizes);
      // Rows of one image follow each other where a tile is as wide as they are.
      const bool goes_on = G::Config::NEIGHBOURS && walk.has(own, round + 1) &&
                           Conv2dTensorTile<G>(walk.at(own, round + 1), sizes).n == tile.n &&
                           written < 1u << 30;
      T* const to = y + (static_cast<i64>(tile.n) * G::C_OUT + oc0) * plane +
                    static_cast<i64>(tile.oy) * sizes.W_out + tile.ox;
      const u32 number = round * G::CONSUMERS + own;
      open(number);
      compute(tile, begins, goes_on, to);
      // The tile's operands are not needed any more.
      __syncwarp();
      if (threadIdx.x % 32 == 0) mbarrier_arrive(&shared.empty[StageTurn<G>(number).stage]);
      begins = !goes_on;
    }
  }

 private:
  // Waits for a tile's operands.
  __device__ __forceinline__ void open(u32 number) {
    const StageTurn<G> at(number);
    mbarrier_wait(&shared.full[at.stage], at.phase);
    // Some lanes may have seen it before others.
    __syncwarp();
    stage = &shared.stages[at.stage];
    all = exact_weights && stage->exact;
    some = exact_weights && stage->usable;
#pragma unroll
    for (int row = 0; row < 2; ++row) factors[row] = factor[row] * stage->unscale;
  }
  // Computes a tile, whose first result in the block's first channel goes to `to`. Where it is as wide as the
  // image its results are one run of memory, from tile to tile if this one goes on where the one before ended
  // (not `begins`), and the next one where this one ends (`goes_on`).
  __device__ __forceinline__ void compute(const Conv2dTensorTile<G>& tile, bool begins, bool goes_on, T* to) {
    const bool whole = tile.width == sizes.W_out;
    const int rows = tile.pixels / tile.width;
    const bool lines = G::WHOLE_LINES && whole && tile.width >= G::EXTRA;
    const int below = lines && tile.oy + rows < sizes.H_out ? 1 : 0;
#pragma unroll 1
    for (int row = 0; row < rows + below; ++row) {
      if (!whole || (begins && row == 0))
        begin(to + static_cast<i64>(row) * sizes.W_out, lines && tile.oy > 0);
      const int width = row < rows ? tile.width : G::EXTRA;
#pragma unroll 1
      for (int column = 0; column < width; column += G::RUN)
        compute_run(tile, row, column, min(G::RUN, width - column));
      if (below && row == rows) {
        sender.end_whole(written - G::LINE);
      } else if (!whole || (!goes_on && row == rows - 1 && !below)) {
        sender.end(written);
      }
    }
  }
  // Starts a run in memory.
  __device__ __forceinline__ void begin(T* to, bool after_another) {
    writer.begin(to, sizes.W_out % 2 == 0);
    sender.begin(to, after_another);
    written = 0;
  }
  // Computes some pixels of a row, and sends what was whole before meanwhile.
  __device__ __forceinline__ void compute_run(const Conv2dTensorTile<G>& tile, int row, int column,
                                              int count) {
    RunSums<G> sums;
    begin_run<G>(sums, stage->operands, weights, row * G::PITCH + column);
    sender.send(written);
    warpgroup_wait<0>();
    keep_behind_wait(sums.high);
    if constexpr (G::PARTS == 2) keep_behind_wait(sums.cross);
    finish(sums);
    // What was written there before has been read.
    __syncwarp();
    writer.write(sums.high, written);
    if (!all) repair(tile, row, column, count);
    written += static_cast<u32>(count) * sizeof(T);
    __syncwarp();
  }
  // Sets factors and shifts; returns whether they are in the range of a float with all scales of pixels.
  __device__ __forceinline__ bool fold() {
    bool fit = true;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      double a, b;
      epilogue.affine(a, b, oc0 + min(channel_of(row), channels - 1));
      factor[row] = static_cast<float>(a * shared.unscale[channel_of(row)]);
      shift[row] = static_cast<float>(a * shared.bias[channel_of(row)] + b);
      const float size = fabsf(factor[row]);
      fit = fit && (size == 0.0f || (size >= 0x1p-64f && size <= 0x1p64f)) && fabsf(shift[row]) <= 0x1p126f;
    }
    return fit;
  }

  // From sums to results.
  __device__ __forceinline__ void finish(RunSums<G>& sums) const {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int channel = oc0 + min(channel_of(row), channels - 1);
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
  __device__ __forceinline__ void repair(const Conv2dTensorTile<G>& tile, int row, int column,
                                         int count) const {
    const int lane = static_cast<int>(threadIdx.x) % 32,
              begin = static_cast<int>(threadIdx.x) % 128 / 32 * 16;
    const PlainPixels<G> pixels(x, weight, tile, oc0, sizes);
    __syncwarp();
#pragma unroll 1
    for (int first = 0; first < count; first += 32) {
      const int pixel = min(first + lane, count - 1);
      const bool bad = first + lane < count && (!some || meets_unfit<G>(*stage, row, column + pixel));
      if (!__any_sync(0xffffffffu, bad)) continue;
#pragma unroll 1
      for (int eight = begin; eight < begin + 16; eight += 8) {
        float sums[8];
        pixels.sum(sums, eight, row, column + pixel);
#pragma unroll
        for (int k = 0; k < 8; ++k) {
          if (bad && eight + k < channels)
            *writer.place_of(shared, eight + k, static_cast<u32>(pixel), written) =
                from_float<T>(epilogue(sums[k] + shared.bias[eight + k], oc0 + eight + k));
        }
      }
    }
  }
};

// A block's whole work.
template <class G, class Epilogue>
__device__ __forceinline__ void conv2d_warpgroup(const typename G::Element* x,
                                                 const typename G::Element* weight,
                                                 const typename G::Element* bias, typename G::Element* y,
                                                 const Conv2dSizes& sizes, const Epilogue& epilogue,
                                                 typename G::Shared& shared) {
  const int oc0 = static_cast<int>(blockIdx.x % G::OC_TILES) * G::OC_TILE;
  if (threadIdx.x == 0) {
#pragma unroll
    for (int stage = 0; stage < G::STAGES; ++stage) {
      mbarrier_init(&shared.full[stage], G::STAGERS);
      mbarrier_init(&shared.empty[stage], 4);
    }
    mbarrier_init(&shared.weights_read, G::CONSUMERS * 4);
    fence_barrier_init();
  }
  const bool mine = split_weights<G>(shared, weight, bias, oc0);
  const bool exact_weights = __syncthreads_and(mine) != 0;
  // The same in all lanes; but for the exchange the compiler could not tell.
  const u32 warp = uniform(threadIdx.x / 32);
  if (warp < G::GATHERERS) {
    if constexpr (G::TAKEN > 0) give_registers<G::LEFT>();
    gather_tiles<G>(x, sizes, shared);
  } else {
    if constexpr (G::TAKEN > 0) take_registers<G::TAKEN>();
    const Held<Epilogue> kept(epilogue);
    const RunWeights<G> weights(shared);
    const u32 own = (warp - G::GATHERERS) / 4;
    Conv2dConsumer<G, Epilogue> consumer(x, weight, sizes, kept.get(), weights, shared, oc0, own,
                                         exact_weights);
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(&shared.weights_read);
    consumer.go(y);
  }
}

}  // namespace coldforge
