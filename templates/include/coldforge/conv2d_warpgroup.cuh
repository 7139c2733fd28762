// SPDX-License-Identifier: Apache-2.0
// Convolution by matrix products of four warps, on Hopper: 64 channels by runs of pixels, whose windows the
// tensor cores read in place; results leave shared memory by the copy engine, in long pieces of whole lines.
#pragma once

#include "coldforge/conv2d_warpgroup_compute.cuh"

namespace coldforge {

// A part of a tile that is staged at once: rows [y0, y1) of it. A warp's rows of a tile follow each other:
// where they are whole rows of the image, and so one run of memory for each channel, only whole lines of 128
// bytes leave before the last of them, and what is left over goes to the front; memory takes a line in two
// pieces at almost twice the cost.
template <class G>
struct StagedRows {
  int y0, y1, width;
  bool whole_rows, in_pairs;
  i64 plane;
  float* first;  // the first pixel's place in the block's first channel
  int W_out, channels;

  __device__ __forceinline__ StagedRows(float* y, const Conv2dTensorTile<G>& tile, int y0, int end, int oc0,
                                        const Conv2dSizes& sizes)
      : y0(y0),
        y1(min(y0 + G::STAGE_ROWS, end)),
        width(tile.width),
        whole_rows(tile.width == sizes.W_out),
        plane(static_cast<i64>(sizes.H_out) * sizes.W_out),
        W_out(sizes.W_out),
        channels(min(G::OC_TILE, G::C_OUT - oc0)) {
    const i64 offset = static_cast<i64>(tile.oy + y0) * W_out + tile.ox;
    first = y + (static_cast<i64>(tile.n) * G::C_OUT + oc0) * plane + offset;
    in_pairs = width % 2 == 0 && plane % 2 == 0 && offset % 2 == 0 && G::PITCH % 2 == 0;
  }
  // A channel's results in shared memory: at the same place within 128 bytes.
  __device__ __forceinline__ float* of(typename G::Shared& shared, int channel) const {
    const u64 at = reinterpret_cast<u64>(first + channel * plane) % 128;
    return reinterpret_cast<float*>(shared.results[threadIdx.x / 128][channel] + at);
  }

  // Moves what the stage before these rows left over to where it goes on.
  __device__ __forceinline__ void carry(typename G::Shared& shared) const {
    const int lane = static_cast<int>(threadIdx.x) % 32,
              begin = static_cast<int>(threadIdx.x) % 128 / 32 * 16;
    const int before = G::STAGE_ROWS * width * 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int channel = begin + i * 4 + lane / 8, at = lane % 8 * 16;
      const u64 now = reinterpret_cast<u64>(first + channel * plane);
      const int left = static_cast<int>(now % 128),
                from = static_cast<int>((now - before) % 128) + before - left;
      unsigned char* slot = shared.results[threadIdx.x / 128][channel];
      if (from < 128 || at >= left || channel >= channels) continue;
      if (at + 16 <= left) {
        *reinterpret_cast<uint4*>(slot + at) = *reinterpret_cast<const uint4*>(slot + from + at);
      } else {
        for (int j = at; j < left; j += 4)
          *reinterpret_cast<float*>(slot + j) = *reinterpret_cast<const float*>(slot + from + j);
      }
    }
  }

  // Starts the copies of all that this warp has staged, which are 16 channels. `low`: where what has not left
  // yet begins in the lane's channel.
  __device__ __forceinline__ void send(typename G::Shared& shared, int& low, bool begins, bool ends) const {
    const int rows = y1 - y0, lane = static_cast<int>(threadIdx.x) % 32;
    const int begin = static_cast<int>(threadIdx.x) % 128 / 32 * 16, count = min(16, channels - begin);
    if (whole_rows) {
      if (lane < count) {
        float* to = first + (begin + lane) * plane;
        const int at = static_cast<int>(reinterpret_cast<u64>(to) % 128), end = at + rows * width * 4;
        if (!G::Config::LINES || begins) low = at;
        const int stop = !G::Config::LINES || ends ? end : end / 128 * 128;
        if (stop > low)
          copy(to + (low - at) / 4, of(shared, begin + lane) + (low - at) / 4, (stop - low) / 4);
        if (end >= 128) low = 0;
      }
    } else if (W_out % 4 == 0 && width % 4 == 0) {
      for (int i = lane; i < count * rows; i += 32) {
        const int channel = begin + i / rows, row = i % rows;
        copy(first + channel * plane + static_cast<i64>(row) * W_out, of(shared, channel) + row * width,
             width);
      }
    } else {
      for (int i = 0; i < count * rows; ++i) {
        const int channel = begin + i / rows, row = i % rows;
        float* to = first + channel * plane + static_cast<i64>(row) * W_out;
        const float* from = of(shared, channel) + row * width;
        for (int x = lane; x < width; x += 32) to[x] = from[x];
      }
    }
    bulk_commit();
  }

 private:
  // The copy engine takes multiples of 16 bytes; a few floats before and behind are stored singly.
  static __device__ __forceinline__ void copy(float* to, const float* from, int count) {
    const int head = min(count, static_cast<int>(-(reinterpret_cast<u64>(to) / 4) & 3));
    const int body = (count - head) / 4 * 4;
    if (body > 0) bulk_store(to + head, from + head, static_cast<u32>(body) * 4);
    for (int i = 0; i < head; ++i) to[i] = from[i];
    for (int i = head + body; i < count; ++i) to[i] = from[i];
  }
};

// A block at work.
template <class G, class Epilogue>
struct WarpgroupBlock {
  const float* x;
  const float* weight;
  float* y;
  const Conv2dSizes& sizes;
  const Epilogue& epilogue;
  typename G::Shared& shared;
  int oc0;
  bool exact_weights;

  __device__ __forceinline__ void fetch(u64 index) const {
    stage_tile<G>(shared, x, Conv2dTensorTile<G>(index, sizes), 0, sizes);
    cp_async_commit();
  }

  // Waits for the tile and makes operands of it.
  __device__ __forceinline__ SplitScale prepare() const {
    cp_async_wait<0>();
    __syncthreads();
    const SplitScale scale = tile_scale<G>(shared);
    split_in_phases<G>(shared, scale.scale);
    publish_shared();
    __syncthreads();
    return scale;
  }

  __device__ __forceinline__ void compute(const Conv2dTensorTile<G>& tile, const SplitScale& scale,
                                          const RunWeights<G>& weights) const {
    const bool all = exact_weights && scale.exact, some = exact_weights && scale.usable;
    const int rows = tile.pixels / tile.width;
    const int begin = static_cast<int>(threadIdx.x) / 128 * G::OWN_ROWS, end = min(rows, begin + G::OWN_ROWS);
    int low = 0;
#pragma unroll 1
    for (int y0 = begin; y0 < end; y0 += G::STAGE_ROWS) {
      const StagedRows<G> staged(y, tile, y0, end, oc0, sizes);
      // A warp's results are its own: it waits for no other.
      bulk_wait_read();
      __syncwarp();
      if (G::Config::LINES && y0 > begin && staged.whole_rows) {
        staged.carry(shared);
        __syncwarp();
      }
      all_runs(staged, weights, scale.unscale);
      if (!all) repair(tile, staged, scale, some);
      publish_shared();
      __syncwarp();
      staged.send(shared, low, y0 == begin, staged.y1 == end);
    }
  }

 private:
  // All runs of a stage; with AHEAD the next one's products are under way while one is finished.
  __device__ __forceinline__ void all_runs(const StagedRows<G>& staged, const RunWeights<G>& weights,
                                           float inverse) const {
    const int first = staged.y0 * G::PITCH;
    if constexpr (G::Config::AHEAD) {
      RunSums<G> high[2], cross[2];
      begin_run<G>(high[0], cross[0], shared.operands, weights, first);
#pragma unroll
      for (int run = 0; run < G::RUNS; ++run) {
        if (run + 1 < G::RUNS) {
          begin_run<G>(high[(run + 1) % 2], cross[(run + 1) % 2], shared.operands, weights,
                       first + (run + 1) * G::RUN);
          warpgroup_wait<1>();
        } else {
          warpgroup_wait<0>();
        }
        finish_run(staged, high[run % 2], cross[run % 2], inverse, first + run * G::RUN);
      }
    } else {
#pragma unroll 1
      for (int run = 0; run < G::RUNS; ++run) {
        RunSums<G> high, cross;
        begin_run<G>(high, cross, shared.operands, weights, first + run * G::RUN);
        warpgroup_wait<0>();
        finish_run(staged, high, cross, inverse, first + run * G::RUN);
      }
    }
  }

  __device__ __forceinline__ PlainInput<G> input(const Conv2dTensorTile<G>& tile) const {
    return {x + static_cast<i64>(tile.n) * G::C_IN * sizes.H * sizes.W, sizes,
            tile.oy * G::Problem::stride_h - G::Problem::padding_h,
            tile.ox * G::Problem::stride_w - G::Problem::padding_w};
  }

  // From sums to staged results.
  __device__ __forceinline__ void finish_run(const StagedRows<G>& staged, RunSums<G>& high,
                                             const RunSums<G>& cross, float inverse, int from) const {
    const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int channel = channel_of(row), legal = oc0 + min(channel, staged.channels - 1);
      const float unscale = shared.unscale[channel] * inverse, bias = shared.bias[channel];
#pragma unroll
      for (int i = 0; i < G::RUN / 4; ++i) {
        float& value = high[i / 2 * 4 + row * 2 + i % 2];
        value = fmaf(cross[i / 2 * 4 + row * 2 + i % 2], 1.0f / G::LOW_SCALE, value);
        value = epilogue(fmaf(value, unscale, bias), legal);
      }
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int channel = channel_of(row);
      if (!G::WHOLE_OC_TILES && channel >= staged.channels) continue;
      float* to = staged.of(shared, channel);
      if (staged.in_pairs) {
        store_run<2>(to, high, staged, from + 2 * t, row);
      } else {
        store_run<1>(to, high, staged, from + 2 * t, row);
      }
    }
  }

  template <int N>
  __device__ __forceinline__ void store_run(float* to, const RunSums<G>& values, const StagedRows<G>& staged,
                                            int from, int row) const {
    // Where a run lies in one row, its columns are known but for their first.
    constexpr bool ONE_ROW = G::PITCH % G::RUN == 0;
    const int y0 = from / G::PITCH, x0 = from % G::PITCH;
#pragma unroll
    for (int j = 0; j < G::RUN / 8; ++j) {
#pragma unroll
      for (int k = 0; k < 2; k += N) {
        const int y = ONE_ROW ? y0 : (from + j * 8 + k) / G::PITCH;
        const int x = ONE_ROW ? x0 + j * 8 + k : (from + j * 8 + k) % G::PITCH;
        if (y >= staged.y1 || x >= staged.width) continue;
        float* at = to + (y - staged.y0) * staged.width + x;
        Vector<float, N> some;
#pragma unroll
        for (int i = 0; i < N; ++i) some.at[i] = values[j * 4 + row * 2 + k + i];
        store_vector<N>(at, some);
      }
    }
  }

  // Computes anew, in plain arithmetic, what meets input that does not bear the tile's scale; all where it
  // bears none. A lane takes a pixel, of eight of the warp's channels at a time.
  __device__ __forceinline__ void repair(const Conv2dTensorTile<G>& tile, const StagedRows<G>& staged,
                                         const SplitScale& scale, bool some) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, count = (staged.y1 - staged.y0) * staged.width;
    const int begin = static_cast<int>(threadIdx.x) % 128 / 32 * 16;
    const PlainInput<G> pixels = input(tile);
    __syncwarp();
#pragma unroll 1
    for (int first = 0; first < count; first += 32) {
      const int own = min(first + lane, count - 1), y = staged.y0 + own / staged.width,
                x = own % staged.width;
      const bool bad = first + lane < count && (!some || !pixels.bears(scale, y, x));
      if (!__any_sync(0xffffffffu, bad)) continue;
#pragma unroll 1
      for (int eight = begin; eight < begin + 16; eight += 8) {
        float sums[8];
        plain_sums(sums, pixels, eight, staged.channels, y, x);
#pragma unroll
        for (int k = 0; k < 8; ++k) {
          if (bad && eight + k < staged.channels)
            staged.of(shared, eight + k)[own] = epilogue(sums[k] + shared.bias[eight + k], oc0 + eight + k);
        }
      }
    }
  }
  __device__ __forceinline__ void plain_sums(float (&sums)[8], const PlainInput<G>& pixels, int channel,
                                             int channels, int y, int x) const {
    constexpr int TERMS = G::C_IN * G::TAPS;
    const float* from[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      from[k] = weight + static_cast<i64>(oc0 + min(channel + k, channels - 1)) * TERMS;
      sums[k] = 0.0f;
    }
#pragma unroll 2
    for (int term = 0; term < TERMS; ++term) {
      const float value = pixels(term / G::TAPS, term % G::TAPS, y, x);
#pragma unroll
      for (int k = 0; k < 8; ++k) sums[k] = fmaf(value, load_readonly<1>(from[k] + term).at[0], sums[k]);
    }
  }
};

// Asks for a tile's input to be in the L2 cache before long.
template <class G>
__device__ __forceinline__ void foresee_tile(const float* x, const Conv2dTensorTile<G>& tile,
                                             const Conv2dSizes& sizes) {
  constexpr u32 LINES = (G::COLUMNS + 31) / 32;
  const u64 plane = static_cast<u64>(sizes.H) * static_cast<u32>(sizes.W);
  const float* sample = x + static_cast<u64>(tile.n) * G::C_IN * plane;
  for (u32 i = threadIdx.x; i < G::C_IN * G::ROWS * LINES; i += G::THREADS) {
    const u32 iy = tile.iy + i / LINES % G::ROWS, ix = tile.ix + i % LINES * 32;
    if (iy < static_cast<u32>(sizes.H) && ix < static_cast<u32>(sizes.W))
      prefetch_l2(sample + i / (LINES * G::ROWS) * plane + static_cast<u64>(iy) * static_cast<u32>(sizes.W) +
                  ix);
  }
}

// A block's whole work: the tiles of conv2d_tensor in the same order. Every thread reaches every barrier.
template <class G, class Epilogue>
__device__ __forceinline__ void conv2d_warpgroup(const float* x, const float* weight, const float* bias,
                                                 float* y, const Conv2dSizes& sizes, const Epilogue& epilogue,
                                                 typename G::Shared& shared) {
  const int oc0 = static_cast<int>(blockIdx.x % G::OC_TILES) * G::OC_TILE;
  const u64 stride = gridDim.x / G::OC_TILES, end = Conv2dTensorTile<G>::count(sizes);
  u64 index = blockIdx.x / G::OC_TILES;
  if (index >= end) return;
  const Held<Epilogue> kept(epilogue);
  WarpgroupBlock<G, Epilogue> block = {x, weight, y, sizes, kept.get(), shared, oc0, true};
  block.fetch(index);
  const bool mine = split_weights<G>(shared, weight, bias, oc0);
  block.exact_weights = __syncthreads_and(mine) != 0;
  const RunWeights<G> weights(shared);
#pragma unroll 1
  while (true) {
    const Conv2dTensorTile<G> tile(index, sizes);
    const SplitScale scale = block.prepare();
    index += stride;
    const bool more = index < end;
    if (more) {
      if constexpr (G::FETCH_EARLY) {
        block.fetch(index);
      } else {
        foresee_tile<G>(x, Conv2dTensorTile<G>(index, sizes), sizes);
      }
    }
    block.compute(tile, scale, weights);
    if (!more) break;
    if constexpr (!G::FETCH_EARLY) {
      bulk_wait_read();
      __syncthreads();
      block.fetch(index);
    }
  }
  bulk_wait_read();
}

}  // namespace coldforge
