// SPDX-License-Identifier: Apache-2.0
// Sums of many vectors whose rounding error does not grow with their number. A chunk of vectors is summed as
// a tree in registers; what holds the sums of chunks is one of three:
//   PairwiseSum     the tree goes on: two sums of equally many chunks are added as soon as there are two
//   CompensatedSum  one sum, and beside it all that its additions rounded away
//   DoubleSum       one sum in double
// A plain sum would not do: where all elements are alike, all its roundings go one way.
#pragma once

#include "coldforge/cpu_vector.hpp"

namespace coldforge {
namespace {

template <int LANES>
struct PairwiseSum {
  // One level for each bit of the number of chunks.
  Vector<float, LANES> level[48];
  uint64_t chunks = 0;

  COLDFORGE_INLINE void add(Vector<float, LANES> v) {
    int i = 0;
    for (; chunks >> i & 1; ++i) v = level[i] + v;
    level[i] = v;
    ++chunks;
  }

  COLDFORGE_INLINE void add_to(double* lanes) const {
    for (int i = 0; chunks >> i; ++i)
      if (chunks >> i & 1)
        for (int lane = 0; lane < LANES; ++lane) lanes[lane] += double(level[i][lane]);
  }
};

template <int LANES>
struct CompensatedSum {
  Vector<float, LANES> sum = {};
  Vector<float, LANES> lost = {};

  // What t = sum + v rounds away is itself a float, and these differences are exact (Knuth's two-sum).
  COLDFORGE_INLINE void add(Vector<float, LANES> v) {
    const Vector<float, LANES> t = sum + v;
    const Vector<float, LANES> added = t - sum;
    lost += (sum - (t - added)) + (v - added);
    sum = t;
  }

  // Beside an infinite sum the correction is NaN: then the sum alone is right.
  COLDFORGE_INLINE void add_to(double* lanes) const {
    for (int lane = 0; lane < LANES; ++lane)
      lanes[lane] += double(sum[lane]) + (lost[lane] - lost[lane] == 0.0f ? double(lost[lane]) : 0.0);
  }
};

template <int LANES>
struct DoubleSum {
  static constexpr int HALF = LANES / 2;
  Vector<double, HALF> low = {};
  Vector<double, HALF> high = {};

  COLDFORGE_INLINE void add(Vector<float, LANES> v) {
    Vector<float, HALF> half[2];
    __builtin_memcpy(half, &v, sizeof(v));
    low += __builtin_convertvector(half[0], Vector<double, HALF>);
    high += __builtin_convertvector(half[1], Vector<double, HALF>);
  }

  COLDFORGE_INLINE void add_to(double* lanes) const {
    for (int lane = 0; lane < HALF; ++lane) {
      lanes[lane] += low[lane];
      lanes[HALF + lane] += high[lane];
    }
  }
};

// The sum of COUNT vectors, `stride` elements apart, as a tree.
template <int LANES, int COUNT>
COLDFORGE_INLINE Vector<float, LANES> tree(const float* first, int64_t stride) {
  if constexpr (COUNT == 1) {
    return load<float, LANES>(first);
  } else {
    return tree<LANES, COUNT / 2>(first, stride) + tree<LANES, COUNT / 2>(first + COUNT / 2 * stride, stride);
  }
}

// The sum of the last `count` < LANES elements before `end`; all LANES before it can be read.
template <int LANES>
COLDFORGE_INLINE Vector<float, LANES> last_of(const float* end, int count) {
  alignas(64) static const int32_t keep[32] = {0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,
                                               0,  0,  0,  0,  0,  -1, -1, -1, -1, -1, -1,
                                               -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
  Vector<int32_t, LANES> bits, mask;
  __builtin_memcpy(&bits, end - LANES, sizeof(bits));
  __builtin_memcpy(&mask, keep + 16 - LANES + count, sizeof(mask));
  return Vector<float, LANES>(bits & mask);
}

// The sum of elements in memory, in pieces that are added one after the other. C gives UNROLL and which of
// the three holds the sums.
template <class C, int LANES>
struct Summation {
  static_assert((C::UNROLL & (C::UNROLL - 1)) == 0 && (C::STREAMS & (C::STREAMS - 1)) == 0, "trees halve");
  using Sum =
      typename Select<C::ACC_FP64, DoubleSum<LANES>,
                      typename Select<C::ACC_KAHAN, CompensatedSum<LANES>, PairwiseSum<LANES>>::type>::type;
  Sum sum;

  // Adds `count` vectors, `stride` elements apart, from each of STREAMS places `apart` elements apart. Memory
  // answers several streams sooner than one: each new page is a new start for the prefetcher.
  template <int STREAMS>
  COLDFORGE_INLINE void add_vectors(const float* first, int64_t count, int64_t stride, int64_t apart) {
    for (; count >= C::UNROLL; count -= C::UNROLL, first += C::UNROLL * stride)
      add_chunk<STREAMS, C::UNROLL>(first, stride, apart);
    add_rest<STREAMS, C::UNROLL / 2>(first, count, stride, apart);
  }

  // Adds `count` neighbours from each of the places.
  template <int STREAMS>
  COLDFORGE_INLINE void add(const float* first, int64_t count, int64_t apart) {
    const int64_t vectors = count / LANES;
    const int rest = int(count % LANES);
    add_vectors<STREAMS>(first, vectors, LANES, apart);
    if (rest == 0) return;
    if (vectors > 0) {
      sum.add(streams<STREAMS>(first + count, apart, [&](const float* end) COLDFORGE_INLINED {
        return last_of<LANES>(end, rest);
      }));
      return;
    }
    for (int s = 0; s < STREAMS; ++s) {
      alignas(64) float few[LANES] = {};
      for (int i = 0; i < rest; ++i) few[i] = first[s * apart + i];
      sum.add(load<float, LANES>(few));
    }
  }

  // Adds `count` neighbours, which are cut into STREAMS places.
  template <int STREAMS>
  COLDFORGE_INLINE void add_run(const float* first, int64_t count) {
    constexpr int64_t CHUNK = C::UNROLL * LANES;
    const int64_t apart = count / (STREAMS * CHUNK) * CHUNK;
    if (STREAMS > 1 && apart > 0) {
      add_vectors<STREAMS>(first, apart / LANES, LANES, apart);
      first += STREAMS * apart;
      count -= STREAMS * apart;
    }
    add<1>(first, count, 0);
  }

  COLDFORGE_INLINE void add_to(double* lanes) const { sum.add_to(lanes); }

  COLDFORGE_INLINE double total() const {
    double lanes[LANES] = {};
    sum.add_to(lanes);
    for (int width = LANES / 2; width > 0; width /= 2)
      for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
    return lanes[0];
  }

 private:
  // body(first) + body(first + apart) + ... as a tree.
  template <int STREAMS, class Body>
  static COLDFORGE_INLINE Vector<float, LANES> streams(const float* first, int64_t apart, const Body& body) {
    if constexpr (STREAMS == 1) {
      return body(first);
    } else {
      const Vector<float, LANES> half = streams<STREAMS / 2>(first, apart, body);
      return half + streams<STREAMS / 2>(first + STREAMS / 2 * apart, apart, body);
    }
  }

  template <int STREAMS, int COUNT>
  COLDFORGE_INLINE void add_chunk(const float* first, int64_t stride, int64_t apart) {
    sum.add(streams<STREAMS>(first, apart, [&](const float* start) COLDFORGE_INLINED {
      return tree<LANES, COUNT>(start, stride);
    }));
  }

  // Fewer vectors than a chunk has: its halves, as far as they go.
  template <int STREAMS, int COUNT>
  COLDFORGE_INLINE void add_rest(const float* first, int64_t count, int64_t stride, int64_t apart) {
    if constexpr (COUNT > 0) {
      if (count >= COUNT) {
        add_chunk<STREAMS, COUNT>(first, stride, apart);
        first += COUNT * stride;
        count -= COUNT;
      }
      add_rest<STREAMS, COUNT / 2>(first, count, stride, apart);
    }
  }
};

}  // namespace
}  // namespace coldforge
