// SPDX-License-Identifier: Apache-2.0
// Depthwise convolution: a thread marches down its columns with the sums of all output rows that the input
// row at hand takes part in, and so reads each input row once.
#pragma once

#include "coldforge/conv2d_depthwise_rows.cuh"
#include "coldforge/conv2d_depthwise_store.cuh"

namespace coldforge {

// One output plane's weights: in registers, or where they are many in shared memory.
template <class G, bool HELD>
struct DepthwiseWeights {
  typename G::Operand held[G::TAPS];

  __device__ __forceinline__ DepthwiseWeights(const typename G::Element* weight, const float*) {
#pragma unroll
    for (int tap = 0; tap < G::TAPS; ++tap)
      held[tap] = static_cast<typename G::Operand>(to_float(load_readonly<1>(weight + tap).at[0]));
  }
  __device__ __forceinline__ typename G::Operand at(int tap) const { return held[tap]; }
};

template <class G>
struct DepthwiseWeights<G, false> {
  const float* shared;

  __device__ __forceinline__ DepthwiseWeights(const typename G::Element*, const float* shared)
      : shared(shared) {}
  __device__ __forceinline__ typename G::Operand at(int tap) const {
    // Anew each time: the compiler would keep all of them in registers.
    return static_cast<typename G::Operand>(static_cast<const volatile float*>(shared)[tap]);
  }
};

// Where a thread's results go.
template <class G, class Epilogue>
struct DepthwiseOutput {
  using Element = typename G::Element;
  const Epilogue& epilogue;
  Element* corner;  // the first of its pixels
  int channel, rows, columns, W_out;

  template <class Sums>
  __device__ __forceinline__ void store(int row, const Sums& sums) const {
    if (row < 0 || row >= rows || columns <= 0) return;
    Vector<Element, G::VEC> values;
#pragma unroll
    for (int v = 0; v < G::VEC; ++v) values.at[v] = from_float<Element>(epilogue(sums[v].result(), channel));
    store_columns<typename G::Hint, G::VEC>(corner + static_cast<i64>(row) * W_out, values, columns, W_out);
  }
};

template <class G>
using DepthwiseSums = typename G::Accumulator[G::OPEN][G::VEC];

// The products of input row `j`, counted from the first that the oldest open output row needs.
template <class G, class Weights>
__device__ __forceinline__ void add_row(DepthwiseSums<G>& sums, const DepthwiseRow<G>& row, int j,
                                        const Weights& weights) {
  using Problem = typename G::Problem;
#pragma unroll
  for (int r = 0; r < G::R; ++r) {
    const int rest = j - r * Problem::dilation_h;
    if (rest < 0 || rest % Problem::stride_h != 0) continue;
#pragma unroll
    for (int s = 0; s < G::S; ++s) {
      const typename G::Operand weight = weights.at(r * G::S + s);
#pragma unroll
      for (int v = 0; v < G::VEC; ++v) {
        const int column = G::LEAD + v * Problem::stride_w + s * Problem::dilation_w;
        const auto value = static_cast<typename G::Operand>(to_float(row.at[column]));
        sums[rest / Problem::stride_h][v].add_product(value, weight);
      }
    }
  }
}

template <class G>
__device__ __forceinline__ void start_row(typename G::Accumulator (&sums)[G::VEC], float bias) {
#pragma unroll
  for (int v = 0; v < G::VEC; ++v) sums[v].start(bias);
}

// The new input rows of UNROLL output rows, asked for together.
template <class G>
struct DepthwiseBatch {
  DepthwiseRow<G> rows[G::UNROLL][G::NEW];

  // For the output rows from `py` on; before the thread's first input row, and where nothing is wanted, rows
  // are not read. N columns an access, where rows begin at multiples of N, else half as many.
  template <class Source, int N = G::VEC>
  __device__ __forceinline__ void read(const Source& source, int py, bool wanted) {
    if constexpr (N > 1) {
      if (!source.template whole<N>()) {
        read<Source, N / 2>(source, py, wanted);
        return;
      }
    }
#pragma unroll
    for (int u = 0; u < G::UNROLL; ++u) {
#pragma unroll
      for (int i = 0; i < G::NEW; ++i) {
        const int j = G::LAST + 1 - G::NEW + i, row = (py + u) * G::Problem::stride_h + j;
        if (G::has_row(j)) source.template read<N>(rows[u][i], row, wanted && row >= 0);
      }
    }
  }
};

// Computes a thread's output rows from top to bottom, as far as the image goes. The march begins above the
// first of them, where the sums are still of none: there all sums of the first one are as they started.
template <class G, class Source, class Weights, class Output>
__device__ __forceinline__ void march(const Source& source, const Weights& weights, float bias,
                                      const Output& output) {
  constexpr int FIRST = -round_up(G::OPEN - 1, G::UNROLL);
  DepthwiseSums<G> sums;
#pragma unroll
  for (int o = 0; o < G::OPEN; ++o) start_row<G>(sums[o], bias);
  DepthwiseBatch<G> batch, next;
  if constexpr (G::AHEAD > 0) next.read(source, FIRST, true);
#pragma unroll 1
  for (int py = FIRST; py < G::PY && py < output.rows; py += G::UNROLL) {
    if constexpr (G::AHEAD > 0) {
      batch = next;
      next.read(source, py + G::UNROLL, py + G::UNROLL < G::PY);
    } else {
      batch.read(source, py, true);
    }
#pragma unroll
    for (int u = 0; u < G::UNROLL; ++u) {
#pragma unroll
      for (int i = 0; i < G::NEW; ++i) {
        const int j = G::LAST + 1 - G::NEW + i;
        if (G::has_row(j)) add_row<G>(sums, batch.rows[u][i], j, weights);
      }
      output.store(py + u, sums[0]);
#pragma unroll
      for (int o = 0; o + 1 < G::OPEN; ++o) {
#pragma unroll
        for (int v = 0; v < G::VEC; ++v) sums[o][v] = sums[o + 1][v];
      }
      start_row<G>(sums[G::OPEN - 1], bias);
    }
  }
}

// The same for a window that is too large for registers: one output row after the other, tap by tap.
template <class G, class Output>
__device__ __forceinline__ void gather(const DepthwiseImage<G>& image, const typename G::Element* weight,
                                       float bias, const Output& output) {
  using Problem = typename G::Problem;
  using Operand = typename G::Operand;
#pragma unroll 1
  for (int py = 0; py < G::PY && py < output.rows; ++py) {
    typename G::Accumulator sums[G::VEC];
    start_row<G>(sums, bias);
#pragma unroll 1
    for (int r = 0; r < G::R; ++r) {
      const u32 y = image.iy + static_cast<u32>(py * Problem::stride_h + r * Problem::dilation_h);
      const bool inside = y < static_cast<u32>(image.H);
      const typename G::Element* row = image.plane + static_cast<i64>(inside ? y : 0) * image.W;
#pragma unroll 4
      for (int s = 0; s < G::S; ++s) {
        const auto tap = static_cast<Operand>(to_float(load_readonly<1>(weight + r * G::S + s).at[0]));
#pragma unroll
        for (int v = 0; v < G::VEC; ++v) {
          const int column = G::LEAD + v * Problem::stride_w + s * Problem::dilation_w;
          const u32 x = image.ix + static_cast<u32>(column);
          const bool is_pixel = inside && x < static_cast<u32>(image.W);
          const float value = is_pixel ? to_float(load_readonly<1>(row + x).at[0]) : 0.0f;
          sums[v].add_product(static_cast<Operand>(value), tap);
        }
      }
    }
    output.store(py, sums);
  }
}

}  // namespace coldforge
