// SPDX-License-Identifier: Apache-2.0
// Convolution by matrix products of four warps, on Hopper: 64 channels by runs of pixels, whose windows the
// tensor cores read in place; results pass through shared memory and leave it in whole lines.
#pragma once

#include "coldforge/conv2d_warpgroup_plain.cuh"

namespace coldforge {

// A block at work.
template <class G, class Epilogue>
struct WarpgroupBlock {
  using T = typename G::Element;

  const T* x;
  const T* weight;
  T* y;
  const Conv2dSizes& sizes;
  const Epilogue& epilogue;
  typename G::Shared& shared;
  int oc0;
  bool exact_weights;
  ResultStream<G> stream;
  // Of the thread's two channels: what makes v, or what the first operations of the chain make of v, of a
  // sum.
  float factor[2], shift[2];

  __device__ __forceinline__ WarpgroupBlock(const T* x, const T* weight, T* y, const Conv2dSizes& sizes,
                                            const Epilogue& epilogue, typename G::Shared& shared, int oc0)
      : x(x),
        weight(weight),
        y(y),
        sizes(sizes),
        epilogue(epilogue),
        shared(shared),
        oc0(oc0),
        exact_weights(true),
        stream(shared, oc0, sizes) {}

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

  // Makes operands of a tile. No thread may still read those before.
  __device__ __forceinline__ SplitScale prepare(const Conv2dTensorTile<G>& tile) const {
    GatheredTile<G> pixels(x, tile, sizes);
    const SplitScale scale = scale_of<G>(shared, pixels);
    split_pixels<G>(shared, pixels, scale.scale);
    if (!(scale.exact && exact_weights)) note_unfit<G>(shared, pixels, scale);
    publish_shared();
    __syncthreads();
    return scale;
  }

  // Computes a tile. Where the image is taken in whole rows they are one run of memory, which goes on from
  // the tile before unless this one `begins` it, and into the next unless it `ends`.
  __device__ __forceinline__ void compute(const Conv2dTensorTile<G>& tile, const SplitScale& scale,
                                          const RunWeights<G>& weights, bool begins, bool ends) {
    const int rows = tile.pixels / tile.width;
    const int first = static_cast<int>(threadIdx.x) / 128 * G::OWN_ROWS,
              last = min(rows, first + G::OWN_ROWS);
    const bool whole = tile.width == sizes.W_out, even = sizes.W_out % 2 == 0;
    const i64 plane = static_cast<i64>(sizes.H_out) * sizes.W_out;
    T* const to = y + (static_cast<i64>(tile.n) * G::C_OUT + oc0) * plane +
                  static_cast<i64>(tile.oy) * sizes.W_out + tile.ox;
    const float factors[2] = {factor[0] * scale.unscale, factor[1] * scale.unscale};
    const bool all = exact_weights && scale.exact, some = exact_weights && scale.usable;
    Place place = {first, 0};
    const auto start = [&](RunSums<G>& sums, const Place& at) {
      begin_run<G>(sums, shared.operands, weights, at.row * G::PITCH + at.column);
    };
    // Ends a run whose sums are there; `more`: it is not the last.
    const auto end = [&](RunSums<G>& sums, bool more) {
      finish(sums, factors);
      if (place.column == 0 && (!whole || (begins && place.row == first)))
        stream.begin(to + static_cast<i64>(place.row) * sizes.W_out, even);
      // What was sent before is read.
      __syncwarp();
      stream.write(sums.high);
      const int count = min(G::RUN, tile.width - place.column);
      if (!all) repair(tile, place.row, place.column, count, some);
      __syncwarp();
      stream.send(shared, static_cast<u32>(count),
                  whole ? ends && !more : count == tile.width - place.column);
    };
    if constexpr (G::Config::AHEAD) {
      if (first >= last) return;
      RunSums<G> sums[2];
      start(sums[0], place);
      for (bool more = true; more;) {
#pragma unroll
        for (int turn = 0; turn < 2; ++turn) {
          const Place next = place.next(tile.width);
          more = next.row < last;
          if (more) {
            start(sums[1 - turn], next);
            warpgroup_wait<1>();
          } else {
            warpgroup_wait<0>();
          }
          end(sums[turn], more);
          if (!more) break;
          place = next;
        }
      }
    } else {
#pragma unroll 1
      while (place.row < last) {
        const Place next = place.next(tile.width);
        RunSums<G> sums;
        start(sums, place);
        warpgroup_wait<0>();
        end(sums, next.row < last);
        place = next;
      }
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
  __device__ __forceinline__ void repair(const Conv2dTensorTile<G>& tile, int row, int column, int count,
                                         bool some) const {
    const int lane = static_cast<int>(threadIdx.x) % 32,
              begin = static_cast<int>(threadIdx.x) % 128 / 32 * 16;
    const PlainPixels<G> pixels(x, weight, tile, oc0, sizes);
    __syncwarp();
#pragma unroll 1
    for (int first = 0; first < count; first += 32) {
      const int own = min(first + lane, count - 1);
      const bool bad = first + lane < count && (!some || meets_unfit<G>(shared, row, column + own));
      if (!__any_sync(0xffffffffu, bad)) continue;
#pragma unroll 1
      for (int eight = begin; eight < begin + 16; eight += 8) {
        float sums[8];
        pixels.sum(sums, eight, row, column + own);
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

// A block's whole work: tiles as of conv2d_tensor, each at a distance from the one before, or neighbours.
// Every thread reaches every barrier.
template <class G, class Epilogue>
__device__ __forceinline__ void conv2d_warpgroup(const typename G::Element* x,
                                                 const typename G::Element* weight,
                                                 const typename G::Element* bias, typename G::Element* y,
                                                 const Conv2dSizes& sizes, const Epilogue& epilogue,
                                                 typename G::Shared& shared) {
  const int oc0 = static_cast<int>(blockIdx.x % G::OC_TILES) * G::OC_TILE;
  const u64 blocks = gridDim.x / G::OC_TILES, block = blockIdx.x / G::OC_TILES;
  const u64 count = Conv2dTensorTile<G>::count(sizes);
  const u64 step = G::Config::NEIGHBOURS ? 1 : blocks;
  u64 index = G::Config::NEIGHBOURS ? block * count / blocks : block;
  const u64 end = G::Config::NEIGHBOURS ? (block + 1) * count / blocks : count;
  if (index >= end) return;
  const Held<Epilogue> kept(epilogue);
  WarpgroupBlock<G, Epilogue> work(x, weight, y, sizes, kept.get(), shared, oc0);
  const bool mine = split_weights<G>(shared, weight, bias, oc0);
  __syncthreads();
  const RunWeights<G> weights(shared);
  work.exact_weights = __syncthreads_and(mine && work.fold()) != 0;
  bool begins = true;
#pragma unroll 1
  while (true) {
    // The tile before is read.
    __syncthreads();
    const Conv2dTensorTile<G> tile(index, sizes);
    const SplitScale scale = work.prepare(tile);
    index += step;
    const bool more = index < end;
    // Rows of one image follow each other where a tile is as wide as they are.
    bool goes_on = false;
    if (more) {
      const Conv2dTensorTile<G> next(index, sizes);
      foresee_tile<G>(x, next, sizes);
      goes_on = G::Config::NEIGHBOURS && G::WARPGROUPS == 1 && next.n == tile.n;
    }
    work.compute(tile, scale, weights, begins, !goes_on);
    begins = !goes_on;
    if (!more) break;
  }
}

}  // namespace coldforge
