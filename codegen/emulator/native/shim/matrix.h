// SPDX-License-Identifier: Apache-2.0
// Products of matrices that the lanes of a warp hold in pieces. The hardware adds up each instruction's
// products in a wide register and cuts what does not fit a float; here too the sum is cut, not rounded.
#pragma once

#include "cooperation.h"
#include "half.h"

namespace coldforge_emulator {

// A lane's pieces of both factors.
struct MatrixPieces {
  unsigned a[4], b[2];
};

inline float cut_to_float(double value) {
  const float nearest = static_cast<float>(value);
  if (nearest - nearest != 0.0f) return nearest;
  const bool beyond = value < 0 ? static_cast<double>(nearest) < value : static_cast<double>(nearest) > value;
  return beyond ? bits_as<float>(bits_as<unsigned>(nearest) - 1u) : nearest;
}

template <float (*VALUE)(unsigned short) = half_value>
COLDFORGE_UNCHECKED inline float half_of(unsigned pair, int which) {
  return VALUE(static_cast<unsigned short>(which != 0 ? pair >> 16 : pair));
}

// `steps` times 8 terms, of halves or of bfloats: the layout that multiply_halves in matrix.cuh describes.
template <float (*VALUE)(unsigned short) = half_value>
COLDFORGE_UNCHECKED inline void multiply_pieces(const Meet<MatrixPieces>& meet, int steps, float* sum) {
  const int lane = static_cast<int>(emulator_lane()), g = lane / 4, t = lane % 4;
  double total[4] = {sum[0], sum[1], sum[2], sum[3]};
  for (int four = 0; four < 4; ++four) {
    const MatrixPieces rows = meet.of(static_cast<unsigned>(4 * g + four));
    const MatrixPieces left = meet.of(static_cast<unsigned>(8 * t + four));
    const MatrixPieces right = meet.of(static_cast<unsigned>(8 * t + 4 + four));
    for (int step = 0; step < steps; ++step) {
      for (int half = 0; half < 2; ++half) {
        const double upper = half_of<VALUE>(rows.a[2 * step], half),
                     lower = half_of<VALUE>(rows.a[2 * step + 1], half);
        const double first = half_of<VALUE>(left.b[step], half), second = half_of<VALUE>(right.b[step], half);
        total[0] += upper * first;
        total[1] += upper * second;
        total[2] += lower * first;
        total[3] += lower * second;
      }
    }
  }
  for (int i = 0; i < 4; ++i) sum[i] = cut_to_float(total[i]);
}

// An operand in memory, of two units of 8 terms by `columns`: each lane answers for a part of it.
inline void note_operand(const char* from, unsigned apart, int columns) {
  for (int i = static_cast<int>(emulator_lane()); i < 2 * columns; i += 32)
    emulator_product_operand(from + i % columns * 16 + i / columns * apart, 16);
}

// A warp's rows of a product of four warps: a lane holds its pieces of the left factor, the right one lies in
// memory, where units of 8 terms are `apart` bytes from each other and columns follow at 16 bytes.
COLDFORGE_UNCHECKED inline void multiply_in_place(const Meet<MatrixPieces>& meet, const char* from,
                                                  unsigned apart, int columns, bool add, float* sum) {
  const int lane = static_cast<int>(emulator_lane()), g = lane / 4, t = lane % 4;
  float rows[2][16];
  for (int four = 0; four < 4; ++four) {
    const MatrixPieces pieces = meet.of(static_cast<unsigned>(4 * g + four));
    for (int i = 0; i < 4; ++i) {
      for (int half = 0; half < 2; ++half)
        rows[i % 2][i / 2 * 8 + 2 * four + half] = half_of(pieces.a[i], half);
    }
  }
  for (int column = 0; column < columns; column += 8) {
    for (int which = 0; which < 2; ++which) {
      float right[16];
      for (int k = 0; k < 16; ++k) {
        unsigned short bits;
        __builtin_memcpy(&bits, from + (column + 2 * t + which) * 16 + k / 8 * apart + k % 8 * 2, 2);
        right[k] = half_value(bits);
      }
      for (int row = 0; row < 2; ++row) {
        float& result = sum[column / 2 + row * 2 + which];
        double total = add ? result : 0.0;
        for (int k = 0; k < 16; ++k) total += static_cast<double>(rows[row][k]) * right[k];
        result = cut_to_float(total);
      }
    }
  }
}

}  // namespace coldforge_emulator
