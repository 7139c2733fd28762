// SPDX-License-Identifier: Apache-2.0
// Direct convolution: the multiply-adds of one stage, held in registers.
#pragma once

#include "coldforge/conv2d_geometry.cuh"
#include "coldforge/memory.cuh"

namespace coldforge {

// A thread's place in its block: its first column and row in the tile and its first output channel in the
// block's.
template <class G>
struct Conv2dPlace {
  int x, y, oc;

  __device__ __forceinline__ Conv2dPlace() {
    const int thread = static_cast<int>(threadIdx.x);
    x = thread % G::LANES_X * G::VEC;
    y = thread / G::LANES_X % G::LANES_Y * G::PY;
    oc = thread / G::PIXEL_THREADS * G::K;
  }
};

template <class G>
using Conv2dSums = typename G::Accumulator[G::K][G::PY][G::PX];

// The columns of one input row that a thread needs, for each of its runs.
template <class G>
using Conv2dWindow = typename G::Operand[G::RUNS][G::WINDOW];

template <class G>
__device__ __forceinline__ void read_window(Conv2dWindow<G>& window,
                                            const typename G::Element (&row)[G::COLUMNS], int x) {
#pragma unroll
  for (int run = 0; run < G::RUNS; ++run) {
#pragma unroll
    for (int j = 0; j < G::WINDOW; j += G::VEC) {
      const int column = G::SHIFT - G::LEAD + (x + run * (G::LANES_X * G::VEC)) * G::Problem::stride_w + j;
      const auto part = load_vector<G::VEC>(&row[column]);
#pragma unroll
      for (int v = 0; v < G::VEC; ++v)
        window[run][j + v] = static_cast<typename G::Operand>(to_float(part.at[v]));
    }
  }
}

template <class G>
__device__ __forceinline__ void copy_window(Conv2dWindow<G>& to, const Conv2dWindow<G>& from) {
#pragma unroll
  for (int run = 0; run < G::RUNS; ++run) {
#pragma unroll
    for (int j = 0; j < G::WINDOW; ++j) to[run][j] = from[run][j];
  }
}

template <class G>
using Conv2dWeights = typename G::Operand[G::K];

// One stage as the multiply-adds see it.
template <class G>
struct Conv2dStage {
  using Element = typename G::Element;
  const typename G::Shared& shared;
  const Element*
      weight;  // of the tile's first output channel and the stage's first input channel, in global memory
  int index;   // of the stage
  int oc0;

  __device__ __forceinline__ const Element (&input(int c, int row) const)[G::COLUMNS] {
    return shared.input[index][c][row];
  }

  // The K weights of one tap for the thread's channels from `oc` of the tile. From shared memory a warp's
  // threads read the same 16 bytes at once. From global memory they lie C_in * R * S apart; channels past the
  // last read the last one's, and their sums are never stored.
  __device__ __forceinline__ void read_weights(Conv2dWeights<G>& value, int tap, int oc) const {
    if constexpr (G::Config::WEIGHTS_SHARED) {
#pragma unroll
      for (int k = 0; k < G::K; k += 4) {
        const auto four = load_vector<4>(&shared.weight[G::WEIGHT_STAGES > 1 ? index : 0][tap][oc + k]);
#pragma unroll
        for (int j = 0; j < 4; ++j) value[k + j] = static_cast<typename G::Operand>(four.at[j]);
      }
    } else {
#pragma unroll
      for (int k = 0; k < G::K; ++k) {
        const int legal = G::WHOLE_OC_TILES ? oc + k : min(oc + k, G::C_OUT - 1 - oc0);
        const Element* from = weight + static_cast<i64>(legal) * (G::C_IN * G::R * G::S) + tap;
        value[k] = static_cast<typename G::Operand>(to_float(load_readonly<1>(from).at[0]));
      }
    }
  }
};

// The multiply-adds of one tap: `rows[first_row + py * stride_h]` is the window of output row py.
template <class G, class Rows>
__device__ __forceinline__ void multiply_tap(Conv2dSums<G>& sums, const Rows& rows, int first_row, int s,
                                             const Conv2dWeights<G>& weights) {
#pragma unroll
  for (int k = 0; k < G::K; ++k) {
#pragma unroll
    for (int py = 0; py < G::PY; ++py) {
#pragma unroll
      for (int px = 0; px < G::PX; ++px) {
        const int column = G::LEAD + px % G::VEC * G::Problem::stride_w + s * G::Problem::dilation_w;
        const auto& window = rows[first_row + py * G::Problem::stride_h];
        sums[k][py][px].add_product(window[px / G::VEC][column], weights[k]);
      }
    }
  }
}

// Adds the products of one stage's channels, kernel rows in a loop: small code.
template <class G>
__device__ __forceinline__ void accumulate_looped(Conv2dSums<G>& sums, const Conv2dStage<G>& stage,
                                                  int channels, const Conv2dPlace<G>& place) {
  using Problem = typename G::Problem;
#pragma unroll 1
  for (int c = 0; c < channels; ++c) {
#pragma unroll 1
    for (int r = 0; r < G::R; ++r) {
      Conv2dWindow<G> rows[(G::PY - 1) * Problem::stride_h + 1];
#pragma unroll
      for (int py = 0; py < G::PY; ++py) {
        const int row = (place.y + py) * Problem::stride_h + r * Problem::dilation_h;
        read_window<G>(rows[py * Problem::stride_h], stage.input(c, row), place.x);
      }
#pragma unroll
      for (int s = 0; s < G::S; ++s) {
        Conv2dWeights<G> weights;
        stage.read_weights(weights, (c * G::R + r) * G::S + s, place.oc);
        multiply_tap<G>(sums, rows, 0, s, weights);
      }
    }
  }
}

// The same with kernel rows unrolled, so that an input row in registers serves several of them. What the
// first tap of a channel needs is read during the last tap of the channel before (the last channel reads its
// own again, unused), so that the loop does not wait for shared memory at each turn.
template <class G>
__device__ __forceinline__ void accumulate_unrolled(Conv2dSums<G>& sums, const Conv2dStage<G>& stage,
                                                    int channels, const Conv2dPlace<G>& place) {
  using Problem = typename G::Problem;
  const int y = place.y * Problem::stride_h;
  Conv2dWindow<G> next_rows[G::PY];
  Conv2dWeights<G> next_weights;
#pragma unroll
  for (int py = 0; py < G::PY; ++py)
    read_window<G>(next_rows[py], stage.input(0, y + py * Problem::stride_h), place.x);
  stage.read_weights(next_weights, 0, place.oc);
#pragma unroll 1
  for (int c = 0; c < channels; ++c) {
    const int next_c = c + 1 < channels ? c + 1 : c;
    Conv2dWindow<G> rows[G::THREAD_ROWS];
#pragma unroll
    for (int py = 0; py < G::PY; ++py) copy_window<G>(rows[py * Problem::stride_h], next_rows[py]);
#pragma unroll
    for (int r = 0; r < G::R; ++r) {
#pragma unroll
      for (int py = 0; py < G::PY; ++py) {
        const bool held = r == 0 || (r >= G::REUSE_AFTER && py + G::REUSE_STEP < G::PY);
        const int row = py * Problem::stride_h + r * Problem::dilation_h;
        if (!held) read_window<G>(rows[row], stage.input(c, y + row), place.x);
      }
#pragma unroll
      for (int s = 0; s < G::S; ++s) {
        Conv2dWeights<G> weights;
#pragma unroll
        for (int k = 0; k < G::K; ++k) weights[k] = next_weights[k];
        const bool last = r == G::R - 1 && s == G::S - 1;
        const int next_tap = last ? next_c * (G::R * G::S) : (c * G::R + r) * G::S + s + 1;
        stage.read_weights(next_weights, next_tap, place.oc);
        if (last) {
#pragma unroll
          for (int py = 0; py < G::PY; ++py) {
            read_window<G>(next_rows[py], stage.input(next_c, y + py * Problem::stride_h), place.x);
          }
        }
        multiply_tap<G>(sums, rows, r * Problem::dilation_h, s, weights);
      }
    }
  }
}

template <class G>
__device__ __forceinline__ void accumulate(Conv2dSums<G>& sums, const Conv2dStage<G>& stage, int channels,
                                           const Conv2dPlace<G>& place) {
  if constexpr (G::Config::UNROLL_R) {
    accumulate_unrolled<G>(sums, stage, channels, place);
  } else {
    accumulate_looped<G>(sums, stage, channels, place);
  }
}

}  // namespace coldforge
