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

// Which of the runs that a ring holds at once a consumer's run is.
template <class G>
struct SlotTurn {
  u32 slot, phase;

  __device__ __forceinline__ explicit SlotTurn(u32 run) : slot(run % G::SLOTS), phase(run / G::SLOTS % 2) {}
};

// Four warps that fill stage after stage, with each consumer's next tile in turn.
template <class G>
__device__ __forceinline__ void gather_tiles(const typename G::Element* x, const Conv2dSizes& sizes,
                                             typename G::Shared& shared) {
  const TileWalk<G> walk(sizes);
  const auto has = [&](u32 number) { return walk.has(number % G::CONSUMERS, number / G::CONSUMERS); };
  const auto fetch = [&](u32 number) {
    const u64 index = walk.at(number % G::CONSUMERS, number / G::CONSUMERS);
    stage_tile<G>(shared, x, Conv2dTensorTile<G>(index, sizes), 0, sizes);
    cp_async_commit();
  };
  if (has(0)) fetch(0);
  mbarrier_wait(&shared.weights_read, 0);
  __syncwarp();
#pragma unroll 1
  for (u32 number = 0; has(number); ++number) {
    cp_async_wait<0>();
    await_gatherers<G>();
    const SplitScale scale = scale_of<G>(shared, static_cast<int>(number % 2));
    const StageTurn<G> turn(number);
    mbarrier_wait(&shared.empty[turn.stage], turn.phase ^ 1);
    __syncwarp();
    fill_stage<G>(shared.stages[turn.stage], shared, scale);
    publish_shared();
    mbarrier_arrive(&shared.full[turn.stage]);
    await_gatherers<G>();
    if (has(number + 1)) fetch(number + 1);
  }
}

// A run of a tile.
struct TileRun {
  int row, column;  // of the tile's outputs
  u32 count;        // of pixels; none where it only fills up a tile's number of runs
  bool begins;      // does not go on in memory where another run ended
  bool ends;        // no other goes on where it ends
};

// The runs of a tile, one after the other.
template <class G>
struct TileRuns {
  const Conv2dTensorTile<G>& tile;
  u32 number;    // of the tile among the block's
  bool begins;   // its results do not go on where those of the tile before ended
  bool goes_on;  // those of the next tile go on where its results end
  bool whole;    // its rows are the image's
  int rows, row, column;

  __device__ __forceinline__ TileRuns(const Conv2dTensorTile<G>& tile, const Conv2dSizes& sizes, u32 number,
                                      bool begins, bool goes_on)
      : tile(tile),
        number(number),
        begins(begins),
        goes_on(goes_on),
        whole(tile.width == sizes.W_out),
        rows(tile.pixels / tile.width),
        row(0),
        column(0) {}

  __device__ __forceinline__ bool left() const { return row < rows; }
  // Behind the last comes one of no pixels, at a place that may be read.
  __device__ __forceinline__ TileRun next() {
    if (!left()) return {0, 0, 0, false, false};
    const int end = column + G::RUN;
    const TileRun run{row, column, static_cast<u32>(min(G::RUN, tile.width - column)),
                      column == 0 && (!whole || (begins && row == 0)),
                      end >= tile.width && (!whole || (!goes_on && row == rows - 1))};
    column = end < tile.width ? end : 0;
    row += end < tile.width ? 0 : 1;
    return run;
  }
};

// Goes through the tiles of a consumer, for the consumer and for those that send its results: the same runs
// for both. Where the image is taken in whole rows the results are one run of memory from tile to tile.
template <class G, class Work>
__device__ __forceinline__ void walk_tiles(typename G::Element* y, const Conv2dSizes& sizes, int oc0, u32 own,
                                           Work& work) {
  const TileWalk<G> walk(sizes);
  const i64 plane = static_cast<i64>(sizes.H_out) * sizes.W_out;
  bool begins = true;
#pragma unroll 1
  for (u32 round = 0; walk.has(own, round); ++round) {
    const Conv2dTensorTile<G> tile(walk.at(own, round), sizes);
    // Rows of one image follow each other where a tile is as wide as they are.
    const bool goes_on = G::Config::NEIGHBOURS && walk.has(own, round + 1) &&
                         Conv2dTensorTile<G>(walk.at(own, round + 1), sizes).n == tile.n &&
                         work.written() < 1u << 30;
    typename G::Element* const to = y + (static_cast<i64>(tile.n) * G::C_OUT + oc0) * plane +
                                    static_cast<i64>(tile.oy) * sizes.W_out + tile.ox;
    TileRuns<G> runs(tile, sizes, round * G::CONSUMERS + own, begins, goes_on);
    work.go(runs, to);
    begins = !goes_on;
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
  ResultSender<G> sender;  // of this warp's channels, where none else sends them
  u32 own, runs;           // the consumer's number; how many runs it has written
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
        sender(shared.results[own][0], threadIdx.x % 128 / 32 * G::SENT_CHANNELS, oc0, sizes),
        own(own),
        runs(0) {
    exact_weights = __all_sync(0xffffffffu, fold() && exact);
  }

  __device__ __forceinline__ u32 written() const { return writer.written; }
  // Computes a tile, whose first result in the block's first channel goes to `to`.
  __device__ __forceinline__ void go(TileRuns<G>& tile_runs, T* to) {
    open(tile_runs.number);
    if (G::CHAIN > 1 && all) {
#pragma unroll 1
      while (tile_runs.left()) chain(tile_runs, to);
    } else {
#pragma unroll 1
      while (tile_runs.left()) {
        const TileRun run = tile_runs.next();
        RunSums<G> sums;
        begin_run<G>(sums, stage->operands, weights, run.row * G::PITCH + run.column);
        warpgroup_wait<0>();
        results(sums, tile_runs.tile, run, to);
      }
    }
    // The tile's operands are not needed any more.
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(&shared.empty[StageTurn<G>(tile_runs.number).stage]);
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
  // Computes the next CHAIN runs of a tile whose sums are all exact: the products of each are begun before
  // results are made of the sums of the one before. (Across a loop's turns the compiler would not let
  // products go on beside other work.)
  __device__ __forceinline__ void chain(TileRuns<G>& tile_runs, T* to) {
    RunSums<G> sums[2];
    TileRun run = tile_runs.next();
    begin_run<G>(sums[0], stage->operands, weights, run.row * G::PITCH + run.column);
#pragma unroll
    for (int i = 0; i < G::CHAIN; ++i) {
      TileRun following{};
      if (i + 1 < G::CHAIN) {
        following = tile_runs.next();
        begin_run<G>(sums[(i + 1) % 2], stage->operands, weights,
                     following.row * G::PITCH + following.column);
        warpgroup_wait<1>();
      } else {
        warpgroup_wait<0>();
      }
      results(sums[i % 2], tile_runs.tile, run, to);
      run = following;
    }
  }
  // Makes results of the sums of a run and hands them on.
  __device__ __forceinline__ void results(RunSums<G>& sums, const Conv2dTensorTile<G>& tile,
                                          const TileRun& run, T* to) {
    keep_behind_wait(sums.high);
    if constexpr (G::PARTS == 2) keep_behind_wait(sums.cross);
    if (run.count == 0) return;
    if (run.begins) {
      T* const from = to + static_cast<i64>(run.row) * sizes.W_out;
      writer.begin(from, sizes.W_out % 2 == 0);
      if constexpr (G::SENDERS == 0) sender.begin(from);
    }
    finish(sums);
    // What was written there before has been read.
    if constexpr (G::SENDERS > 0) {
      const SlotTurn<G> at(runs);
      mbarrier_wait(&shared.sent[own][at.slot], at.phase ^ 1);
      if (G::SLOTS > 1 && run.begins && runs > 0) {
        // Elsewhere in the rings: so is what the run before left there.
        const SlotTurn<G> before(runs - 1);
        mbarrier_wait(&shared.sent[own][before.slot], before.phase);
      }
    }
    __syncwarp();
    writer.write(sums.high);
    if (!all) repair(tile, run.row, run.column, static_cast<int>(run.count));
    writer.advance(run.count);
    __syncwarp();
    if constexpr (G::SENDERS == 0) {
      sender.send(run.count, run.ends);
    } else {
      if (threadIdx.x % 32 == 0) mbarrier_arrive(&shared.written[own][SlotTurn<G>(runs).slot]);
      ++runs;
    }
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
            *writer.place_of(shared, eight + k, static_cast<u32>(pixel)) =
                from_float<T>(epilogue(sums[k] + shared.bias[eight + k], oc0 + eight + k));
        }
      }
    }
  }
};

// A warp that sends a consumer's results.
template <class G>
struct Conv2dSender {
  using T = typename G::Element;

  typename G::Shared& shared;
  ResultSender<G> sender;
  const Conv2dSizes& sizes;
  u32 own, runs;  // the consumer's number; how many of its runs are sent

  __device__ __forceinline__ Conv2dSender(typename G::Shared& shared, int oc0, u32 own, u32 channel,
                                          const Conv2dSizes& sizes)
      : shared(shared),
        sender(shared.results[own][0], channel, oc0, sizes),
        sizes(sizes),
        own(own),
        runs(0) {}

  __device__ __forceinline__ u32 written() const { return sender.written; }
  __device__ __forceinline__ void go(TileRuns<G>& tile_runs, T* to) {
#pragma unroll 1
    while (tile_runs.left()) {
      const TileRun run = tile_runs.next();
      const SlotTurn<G> at(runs);
      if (run.begins) sender.begin(to + static_cast<i64>(run.row) * sizes.W_out);
      mbarrier_wait(&shared.written[own][at.slot], at.phase);
      __syncwarp();
      sender.send(run.count, run.ends);
      __syncwarp();
      if (threadIdx.x % 32 == 0) mbarrier_arrive(&shared.sent[own][at.slot]);
      ++runs;
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
    if constexpr (G::SENDERS > 0) {
#pragma unroll
      for (int consumer = 0; consumer < G::CONSUMERS; ++consumer) {
#pragma unroll
        for (int slot = 0; slot < G::SLOTS; ++slot) {
          mbarrier_init(&shared.written[consumer][slot], 4);
          mbarrier_init(&shared.sent[consumer][slot], G::SENDERS);
        }
      }
    }
    mbarrier_init(&shared.weights_read, G::CONSUMERS * 4);
    fence_barrier_init();
  }
  const bool mine = split_weights<G>(shared, weight, bias, oc0);
  const bool exact_weights = __syncthreads_and(mine) != 0;
  // The same in all lanes; but for the exchange the compiler could not tell.
  const u32 warp = uniform(threadIdx.x / 32);
  if (warp < G::HELPERS) {
    if constexpr (G::TAKEN > 0) give_registers<G::LEFT>();
    if (warp < G::GATHERERS) {
      gather_tiles<G>(x, sizes, shared);
    } else if constexpr (G::SENDERS > 0) {
      const u32 number = warp - G::GATHERERS;
      Conv2dSender<G> sender(shared, oc0, number / G::SENDERS, number % G::SENDERS * G::SENT_CHANNELS, sizes);
      walk_tiles<G>(y, sizes, oc0, number / G::SENDERS, sender);
    }
  } else {
    if constexpr (G::TAKEN > 0) take_registers<G::TAKEN>();
    const Held<Epilogue> kept(epilogue);
    const RunWeights<G> weights(shared);
    const u32 own = (warp - G::HELPERS) / 4;
    Conv2dConsumer<G, Epilogue> consumer(x, weight, sizes, kept.get(), weights, shared, oc0, own,
                                         exact_weights);
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(&shared.weights_read);
    walk_tiles<G>(y, sizes, oc0, own, consumer);
  }
}

}  // namespace coldforge
