// SPDX-License-Identifier: Apache-2.0
// Two ways to read the window of a tile of convolution outputs: from a padded copy, or from the image itself.
//
// Both answer the same questions: where is channel c, window row r, tap s of the tile's output pixel (y, x)?
// At at(c, y, r) + tap(s) + x, so that neighbouring outputs always read neighbouring elements.
#pragma once

#include "coldforge/cpu_vector.hpp"

namespace coldforge {
namespace {

// The image of one sample.
template <class T>
struct Image {
  const T* x;
  int64_t H;
  int64_t W;
};

// A copy of the part of the image that a tile reads, with zeros for the padding. With stride_w > 1 a row is
// stored as stride_w phases (columns 0, stride_w, ..., then 1, stride_w + 1, ...), each contiguous.
template <class P, class C, class T>
struct StagedWindow {
  using Element = T;
  static constexpr int PHASE = C::TILE_X + (P::S - 1) * P::dilation_w / P::stride_w;
  static constexpr int PITCH = PHASE * P::stride_w;
  static constexpr int ROWS = (C::TILE_Y - 1) * P::stride_h + (P::R - 1) * P::dilation_h + 1;
  static constexpr int PLANE = ROWS * PITCH;
  static constexpr int ELEMENTS = PLANE * P::C_in;

  const T* base;

  COLDFORGE_INLINE const T* at(int c, int y, int r) const {
    return base + c * PLANE + (y * P::stride_h + r * P::dilation_h) * PITCH;
  }
  static constexpr int tap(int s) {
    return s * P::dilation_w % P::stride_w * PHASE + s * P::dilation_w / P::stride_w;
  }

  // Fills `buffer` (ELEMENTS long) for `rows` output rows from (y0, x0) on.
  template <class From>
  static void fill(T* buffer, const Image<From>& image, int64_t y0, int64_t x0, int rows) {
    const int used = (rows - 1) * P::stride_h + (P::R - 1) * P::dilation_h + 1;
    for (int c = 0; c < P::C_in; ++c) {
      const From* const plane = image.x + c * image.H * image.W;
      for (int row = 0; row < used; ++row) {
        const int64_t y = y0 * P::stride_h - P::padding_h + row;
        T* const to = buffer + c * PLANE + row * PITCH;
        // A row outside the image is one of which no column is inside.
        const bool outside = y < 0 || y >= image.H;
        fill_row(to, plane + (outside ? 0 : y * image.W), x0 * P::stride_w - P::padding_w,
                 outside ? 0 : image.W);
      }
    }
  }

 private:
  template <class From>
  static COLDFORGE_INLINE void fill_row(T* to, const From* row, int64_t first, int64_t width) {
    for (int phase = 0; phase < P::stride_w; ++phase, to += PHASE) {
      // Element j is column start + j * stride_w; those in [left, right) exist.
      const int64_t start = first + phase;
      const int64_t left = smaller<int64_t>(start < 0 ? ceil_div<int64_t>(-start, P::stride_w) : 0, PHASE);
      const int64_t inside = start < width ? ceil_div<int64_t>(width - start, P::stride_w) : 0;
      const int64_t right = larger(left, smaller<int64_t>(inside, PHASE));
      for (int64_t j = 0; j < left; ++j) to[j] = T(0);
      for (int64_t j = left; j < right; ++j) to[j] = T(row[start + j * P::stride_w]);
      for (int64_t j = right; j < PHASE; ++j) to[j] = T(0);
    }
  }
};

// The image itself, from a tile's corner. Needs padding 0 and stride_w 1, and reads nothing beyond the tile's
// outputs.
template <class P, class T>
struct ImageWindow {
  using Element = T;
  const T* base;
  int64_t plane;
  int64_t pitch;

  COLDFORGE_INLINE ImageWindow(const Image<T>& image, int64_t y0, int64_t x0)
      : base(image.x + y0 * P::stride_h * image.W + x0), plane(image.H * image.W), pitch(image.W) {}

  COLDFORGE_INLINE const T* at(int c, int y, int r) const {
    return base + c * plane + (y * P::stride_h + r * P::dilation_h) * pitch;
  }
  static constexpr int tap(int s) { return s * P::dilation_w; }
};

}  // namespace
}  // namespace coldforge
