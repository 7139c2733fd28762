// SPDX-License-Identifier: Apache-2.0
// Atomic updates. The runtime does the reading and the writing, so that it can check both.
#pragma once

namespace coldforge_emulator {

template <class T>
struct Same {
  using type = T;
};

template <class T, class Update>
T atomic_update(T* address, Update update, bool reads = true) {
  T before;
  emulator_atomic_begin(address, &before, sizeof(T), reads);
  const T after = update(before);
  emulator_atomic_end(address, &after, sizeof(T));
  return before;
}

}  // namespace coldforge_emulator

#define COLDFORGE_ATOMIC(NAME, READS, EXPRESSION)                                 \
  template <class T>                                                              \
  T NAME(T* address, typename coldforge_emulator::Same<T>::type value) {          \
    const auto update = [value](T old) { return static_cast<T>(EXPRESSION); };    \
    return coldforge_emulator::atomic_update(address, update, READS);             \
  }                                                                               \
  template <class T>                                                              \
  T NAME##_block(T* address, typename coldforge_emulator::Same<T>::type value) {  \
    return NAME(address, value);                                                  \
  }                                                                               \
  template <class T>                                                              \
  T NAME##_system(T* address, typename coldforge_emulator::Same<T>::type value) { \
    return NAME(address, value);                                                  \
  }
COLDFORGE_ATOMIC(atomicAdd, true, coldforge_emulator::wrapped_sum(old, value))
COLDFORGE_ATOMIC(atomicSub, true, coldforge_emulator::wrapped_difference(old, value))
COLDFORGE_ATOMIC(atomicMin, true, value < old ? value : old)
COLDFORGE_ATOMIC(atomicMax, true, old < value ? value : old)
COLDFORGE_ATOMIC(atomicAnd, true, old& value)
COLDFORGE_ATOMIC(atomicOr, true, old | value)
COLDFORGE_ATOMIC(atomicXor, true, old ^ value)
COLDFORGE_ATOMIC(atomicExch, false, (static_cast<void>(old), value))
COLDFORGE_ATOMIC(atomicInc, true, old >= value ? 0 : old + 1)
COLDFORGE_ATOMIC(atomicDec, true, old == 0 || old > value ? value : old - 1)
#undef COLDFORGE_ATOMIC

template <class T>
T atomicCAS(T* address, typename coldforge_emulator::Same<T>::type expected,
            typename coldforge_emulator::Same<T>::type desired) {
  return coldforge_emulator::atomic_update(address, [=](T old) { return old == expected ? desired : old; });
}
