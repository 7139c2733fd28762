// SPDX-License-Identifier: Apache-2.0
// What threads do together: barriers, fences, and the operations of a warp, all built on one meeting of its
// lanes. They are macros so that each knows where it stands.
#pragma once

#define __syncthreads() emulator_barrier(COLDFORGE_EMULATOR_SITE)
// An argument may hold commas that are not in parentheses: those of template arguments.
#define COLDFORGE_BARRIER(OPERATION, ...) \
  emulator_barrier_reduce(COLDFORGE_EMULATOR_SITE, OPERATION, (__VA_ARGS__) != 0)
#define __syncthreads_count(...) COLDFORGE_BARRIER(EMULATOR_COUNT, __VA_ARGS__)
#define __syncthreads_and(...) COLDFORGE_BARRIER(EMULATOR_AND, __VA_ARGS__)
#define __syncthreads_or(...) COLDFORGE_BARRIER(EMULATOR_OR, __VA_ARGS__)

inline void __threadfence_block() { emulator_fence(EMULATOR_FENCE_BLOCK); }
inline void __threadfence() { emulator_fence(EMULATOR_FENCE_DEVICE); }
inline void __threadfence_system() { emulator_fence(EMULATOR_FENCE_DEVICE); }

namespace coldforge_emulator {

// What these read is the emulator's memory, not the kernel's.
#define COLDFORGE_UNCHECKED __attribute__((noinline, no_sanitize("thread", "address", "undefined")))

constexpr unsigned ALL_LANES = 0xffffffffu;

template <class T>
struct Meet {
  const EmulatorSlots* slots;

  Meet(EmulatorSite site, unsigned mask, T value) {
    static_assert(sizeof(T) <= sizeof(slots->bytes[0]), "too large a value for a warp operation");
    slots = emulator_warp_meet(site, mask, &value, sizeof(T), false);
  }
  COLDFORGE_UNCHECKED T of(unsigned lane) const {
    T value;
    __builtin_memcpy(&value, slots->bytes[lane & 31], sizeof(T));
    return value;
  }
  COLDFORGE_UNCHECKED unsigned present() const { return slots->present; }
  template <class Combine>
  T combined(Combine combine) const {
    unsigned left = present();
    T result = of(__builtin_ctz(left));
    while (left &= left - 1) result = combine(result, of(__builtin_ctz(left)));
    return result;
  }
};

inline void sync_warp(EmulatorSite site, unsigned mask = ALL_LANES) {
  emulator_warp_meet(site, mask, &mask, 0, true);
}

// Lanes `first` to `last` of the calling lane's part of the warp, when a shuffle looks at parts of `width`.
struct Segment {
  int lane, first, last;
  explicit Segment(int width)
      : lane(static_cast<int>(emulator_lane())), first(lane / width * width), last(first + width - 1) {}
};

template <class T>
T shuffle(EmulatorSite site, unsigned mask, T value, int source, int width = 32) {
  const Segment part(width);
  return Meet<T>(site, mask, value).of(part.first + (source & (width - 1)));
}

template <class T>
T shuffle_up(EmulatorSite site, unsigned mask, T value, unsigned delta, int width = 32) {
  const Segment part(width);
  const int source = part.lane - static_cast<int>(delta);
  return Meet<T>(site, mask, value).of(source < part.first ? part.lane : source);
}

template <class T>
T shuffle_down(EmulatorSite site, unsigned mask, T value, unsigned delta, int width = 32) {
  const Segment part(width);
  const int source = part.lane + static_cast<int>(delta);
  return Meet<T>(site, mask, value).of(source > part.last ? part.lane : source);
}

template <class T>
T shuffle_xor(EmulatorSite site, unsigned mask, T value, int pattern, int width = 32) {
  const Segment part(width);
  const int source = part.lane ^ pattern;
  return Meet<T>(site, mask, value).of(source > part.last ? part.lane : source);
}

inline unsigned ballot(EmulatorSite site, unsigned mask, int predicate) {
  const Meet<int> meet(site, mask, predicate != 0);
  unsigned votes = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    if (meet.present() >> lane & 1u) votes |= static_cast<unsigned>(meet.of(lane)) << lane;
  }
  return votes;
}

inline int all(EmulatorSite site, unsigned mask, int predicate) {
  return Meet<int>(site, mask, predicate != 0).combined([](int a, int b) { return a & b; });
}

inline int any(EmulatorSite site, unsigned mask, int predicate) {
  return Meet<int>(site, mask, predicate != 0).combined([](int a, int b) { return a | b; });
}

template <class T>
unsigned match_any(EmulatorSite site, unsigned mask, T value) {
  const Meet<T> meet(site, mask, value);
  unsigned equal = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    if ((meet.present() >> lane & 1u) && meet.of(lane) == value) equal |= 1u << lane;
  }
  return equal;
}

template <class Combine, class T>
T reduce(EmulatorSite site, Combine combine, unsigned mask, T value) {
  return Meet<T>(site, mask, value).combined(combine);
}

}  // namespace coldforge_emulator

#define __syncwarp(...) coldforge_emulator::sync_warp(COLDFORGE_EMULATOR_SITE __VA_OPT__(, ) __VA_ARGS__)
#define __shfl_sync(...) coldforge_emulator::shuffle(COLDFORGE_EMULATOR_SITE, __VA_ARGS__)
#define __shfl_up_sync(...) coldforge_emulator::shuffle_up(COLDFORGE_EMULATOR_SITE, __VA_ARGS__)
#define __shfl_down_sync(...) coldforge_emulator::shuffle_down(COLDFORGE_EMULATOR_SITE, __VA_ARGS__)
#define __shfl_xor_sync(...) coldforge_emulator::shuffle_xor(COLDFORGE_EMULATOR_SITE, __VA_ARGS__)
#define __ballot_sync(...) coldforge_emulator::ballot(COLDFORGE_EMULATOR_SITE, __VA_ARGS__)
#define __all_sync(...) coldforge_emulator::all(COLDFORGE_EMULATOR_SITE, __VA_ARGS__)
#define __any_sync(...) coldforge_emulator::any(COLDFORGE_EMULATOR_SITE, __VA_ARGS__)
#define __match_any_sync(...) coldforge_emulator::match_any(COLDFORGE_EMULATOR_SITE, __VA_ARGS__)
#define COLDFORGE_REDUCE(EXPRESSION, ...)                                                           \
  coldforge_emulator::reduce(                                                                       \
      COLDFORGE_EMULATOR_SITE, [](auto a, auto b) { return static_cast<decltype(a)>(EXPRESSION); }, \
      __VA_ARGS__)
#define __reduce_add_sync(...) COLDFORGE_REDUCE(coldforge_emulator::wrapped_sum(a, b), __VA_ARGS__)
#define __reduce_min_sync(...) COLDFORGE_REDUCE(b < a ? b : a, __VA_ARGS__)
#define __reduce_max_sync(...) COLDFORGE_REDUCE(a < b ? b : a, __VA_ARGS__)
#define __reduce_and_sync(...) COLDFORGE_REDUCE(a& b, __VA_ARGS__)
#define __reduce_or_sync(...) COLDFORGE_REDUCE(a | b, __VA_ARGS__)
#define __reduce_xor_sync(...) COLDFORGE_REDUCE(a ^ b, __VA_ARGS__)
