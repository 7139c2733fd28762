// SPDX-License-Identifier: Apache-2.0
// What a transposed convolution followed by a mean needs of a plane of its input: for each tap the sum of the
// pixels that it meets. Border rows and columns, which some taps miss, are summed each on its own ("bins")
// and added where a tap meets them: subtracting them from a total would cancel.
//
// P holds the problem's constants (R, S, stride_h, ..., TOP, BOTTOM, LEFT, RIGHT), C the config's.
#pragma once

#include "coldforge/cpu_summation.hpp"

namespace coldforge {
namespace {

// Along one axis: EXTENT taps, FIRST and LAST pixels at its ends that some tap misses.
template <int EXTENT, int STRIDE, int PADDING, int DILATION, int FIRST, int LAST>
struct Axis {
  static constexpr int BINS = FIRST + 1 + LAST;
  // Tap t meets the bins [begin[t], end[t]). Bins without pixels hold zero: they may be among them.
  int begin[EXTENT];
  int end[EXTENT];

  Axis(int64_t pixels, int64_t outputs) {
    for (int t = 0; t < EXTENT; ++t) {
      // The pixels i with 0 <= i * STRIDE - PADDING + t * DILATION < outputs are those of [from, to).
      const int64_t missed = PADDING - int64_t(t) * DILATION;
      const int64_t last = outputs - 1 + missed;
      const int64_t from = missed > 0 ? ceil_div<int64_t>(missed, STRIDE) : 0;
      const int64_t to = larger(from, last < 0 ? 0 : smaller(pixels, last / STRIDE + 1));
      begin[t] = int(smaller<int64_t>(from, FIRST));
      // Short of the first pixels' end it is one of their bins, else one of the last pixels'.
      end[t] = int(to < smaller<int64_t>(FIRST, pixels)
                       ? to
                       : smaller<int64_t>(BINS, larger<int64_t>(FIRST + 1 + to - (pixels - LAST), 0)));
    }
  }
};

template <class P, class C>
struct PlaneSum {
  using Rows = Axis<P::R, P::stride_h, P::padding_h, P::dilation_h, P::TOP, P::BOTTOM>;
  using Columns = Axis<P::S, P::stride_w, P::padding_w, P::dilation_w, P::LEFT, P::RIGHT>;
  static constexpr int LANES = smaller(C::VEC, NATIVE_VECTOR_BYTES / int(sizeof(float)));
  static constexpr bool BORDERED = Rows::BINS > 1 || Columns::BINS > 1;
  // Without a border all taps meet the whole plane.
  static constexpr int SUMS = BORDERED ? P::R * P::S : 1;
  using Sum = Summation<C, LANES>;

  const int64_t H, W;
  const Rows rows;
  const Columns columns;
  double bins[Rows::BINS][Columns::BINS];

  PlaneSum(int64_t H, int64_t W, int64_t H_out, int64_t W_out)
      : H(H), W(W), rows(H, H_out), columns(W, W_out) {}

  // Part `part` of C::SPLIT of a plane: to sums[SUMS], tap (r, s) at r * S + s.
  template <class To>
  void sum_part(const float* plane, int part, To* sums) {
    if constexpr (!BORDERED) {
      // Whole cache lines.
      const int64_t size = ceil_div<int64_t>(ceil_div<int64_t>(H * W, C::SPLIT), 16) * 16;
      const int64_t begin = smaller(part * size, H * W);
      Sum sum;
      sum.template add_run<C::STREAMS>(plane + begin, smaller(size, H * W - begin));
      sums[0] = To(sum.total());
    } else {
      for (auto& row : bins)
        for (double& bin : row) bin = 0.0;
      const int64_t begin = H * part / C::SPLIT, end = H * (part + 1) / C::SPLIT;
      const int64_t top = smaller<int64_t>(P::TOP, H), bottom = larger<int64_t>(H - P::BOTTOM, top);
      for (int64_t h = begin; h < smaller(end, top); ++h) add_rows(plane, h, h + 1, bins[h]);
      if (larger(begin, top) < smaller(end, bottom))
        add_rows(plane, larger(begin, top), smaller(end, bottom), bins[P::TOP]);
      for (int64_t h = larger(begin, bottom); h < end; ++h)
        add_rows(plane, h, h + 1, bins[P::TOP + 1 + h - (H - P::BOTTOM)]);
      add_up(sums);
    }
  }

 private:
  // Adds rows [begin, end) to the bins of one row of bins.
  void add_rows(const float* plane, int64_t begin, int64_t end, double* to) {
    if constexpr (Columns::BINS == 1) {
      Sum sum;
      sum.template add_run<C::STREAMS>(plane + begin * W, (end - begin) * W);
      to[0] += sum.total();
    } else if (W < LEFT_LANES + RIGHT_LANES) {
      add_narrow_rows(plane, begin, end, to);
    } else {
      add_wide_rows(plane, begin, end, to);
    }
  }

  // The ends of a row that hold its border columns are whole vectors, which are summed row upon row: so each
  // lane has the sum of one column. What lies between is summed along the rows.
  static constexpr int LEFT_VECTORS = ceil_div<int>(P::LEFT, LANES);
  static constexpr int RIGHT_VECTORS = ceil_div<int>(P::RIGHT, LANES);
  static constexpr int LEFT_LANES = LEFT_VECTORS * LANES;
  static constexpr int RIGHT_LANES = RIGHT_VECTORS * LANES;

  struct Sums {
    Sum middle;
    Sum left[larger(LEFT_VECTORS, 1)];
    Sum right[larger(RIGHT_VECTORS, 1)];
  };

  void add_wide_rows(const float* plane, int64_t begin, int64_t end, double* to) {
    Sums sums;
    const int64_t apart = (end - begin) / C::STREAMS;
    if (C::STREAMS > 1 && apart > 0) {
      add_streams<C::STREAMS>(sums, plane + begin * W, apart);
      begin += C::STREAMS * apart;
    }
    add_streams<1>(sums, plane + begin * W, end - begin);
    double lanes[LEFT_LANES + RIGHT_LANES] = {};
    for (int i = 0; i < LEFT_VECTORS; ++i) sums.left[i].add_to(lanes + i * LANES);
    for (int i = 0; i < RIGHT_VECTORS; ++i) sums.right[i].add_to(lanes + LEFT_LANES + i * LANES);
    // Of the columns at the ends those nearer to the middle belong to it.
    constexpr int FIRST_RIGHT = LEFT_LANES + RIGHT_LANES - P::RIGHT;
    to[P::LEFT] += sums.middle.total();
    for (int i = 0; i < LEFT_LANES + RIGHT_LANES; ++i)
      to[i < P::LEFT ? i : i < FIRST_RIGHT ? P::LEFT : P::LEFT + 1 + i - FIRST_RIGHT] += lanes[i];
  }

  // Adds STREAMS times `count` rows. Their ends are read while they are near.
  template <int STREAMS>
  COLDFORGE_INLINE void add_streams(Sums& sums, const float* first, int64_t count) {
    const int64_t apart = count * W;
    for (int64_t row = 0; row < count; row += C::UNROLL, first += C::UNROLL * W) {
      const int64_t block = smaller<int64_t>(C::UNROLL, count - row);
      for (int64_t i = 0; i < block; ++i)
        sums.middle.template add<STREAMS>(first + i * W + LEFT_LANES, W - LEFT_LANES - RIGHT_LANES, apart);
      for (int i = 0; i < LEFT_VECTORS; ++i)
        sums.left[i].template add_vectors<STREAMS>(first + i * LANES, block, W, apart);
      for (int i = 0; i < RIGHT_VECTORS; ++i)
        sums.right[i].template add_vectors<STREAMS>(first + W - RIGHT_LANES + i * LANES, block, W, apart);
    }
  }

  // Rows of a few pixels, one by one.
  void add_narrow_rows(const float* plane, int64_t begin, int64_t end, double* to) {
    for (int64_t w = 0; w < W; ++w) {
      double sum = 0.0;
      for (int64_t h = begin; h < end; ++h) sum += double(plane[h * W + w]);
      to[w < P::LEFT ? w : w < W - P::RIGHT ? P::LEFT : P::LEFT + 1 + w - (W - P::RIGHT)] += sum;
    }
  }

  // Each tap's sum of the bins that it meets: first over columns, then over rows.
  template <class To>
  void add_up(To* sums) const {
    double along[Rows::BINS][P::S];
    for (int i = 0; i < Rows::BINS; ++i)
      for (int s = 0; s < P::S; ++s) {
        along[i][s] = 0.0;
        for (int j = columns.begin[s]; j < columns.end[s]; ++j) along[i][s] += bins[i][j];
      }
    for (int r = 0; r < P::R; ++r)
      for (int s = 0; s < P::S; ++s) {
        double sum = 0.0;
        for (int i = rows.begin[r]; i < rows.end[r]; ++i) sum += along[i][s];
        sums[r * P::S + s] = To(sum);
      }
  }
};

}  // namespace
}  // namespace coldforge
