// SPDX-License-Identifier: Apache-2.0
// What `g++ -fsanitize=thread` calls at each access. In the place of its own library: threads here are fibers
// of one OS thread, and the rules are a GPU's.
#include "access.h"
#include "order.h"

namespace {

constexpr emulator::Access READ = {true, false, false, false};
constexpr emulator::Access WRITE = {false, true, false, false};
// Volatile accesses are how CUDA code polls: each is whole, and ordered as an atomic is.
constexpr emulator::Access VOLATILE_READ = {true, false, true, false};
constexpr emulator::Access VOLATILE_WRITE = {false, true, true, false};

}  // namespace

#define EMULATOR_CALLBACK(NAME, BYTES, ACCESS) \
  extern "C" void NAME(void* at) { emulator::check_instrumented(at, BYTES, ACCESS, EMULATOR_CALLER); }

#define EMULATOR_VOLATILE(NAME, BYTES, ACCESS)                        \
  extern "C" void NAME(void* at) {                                    \
    emulator::check_instrumented(at, BYTES, ACCESS, EMULATOR_CALLER); \
    emulator::order_by_atomic(at);                                    \
  }

#define EMULATOR_CALLBACKS(BYTES)                                                \
  EMULATOR_CALLBACK(__tsan_read##BYTES, BYTES, READ)                             \
  EMULATOR_CALLBACK(__tsan_write##BYTES, BYTES, WRITE)                           \
  EMULATOR_CALLBACK(__tsan_unaligned_read##BYTES, BYTES, READ)                   \
  EMULATOR_CALLBACK(__tsan_unaligned_write##BYTES, BYTES, WRITE)                 \
  EMULATOR_VOLATILE(__tsan_volatile_read##BYTES, BYTES, VOLATILE_READ)           \
  EMULATOR_VOLATILE(__tsan_volatile_write##BYTES, BYTES, VOLATILE_WRITE)         \
  EMULATOR_VOLATILE(__tsan_unaligned_volatile_read##BYTES, BYTES, VOLATILE_READ) \
  EMULATOR_VOLATILE(__tsan_unaligned_volatile_write##BYTES, BYTES, VOLATILE_WRITE)

EMULATOR_CALLBACKS(1)
EMULATOR_CALLBACKS(2)
EMULATOR_CALLBACKS(4)
EMULATOR_CALLBACKS(8)
EMULATOR_CALLBACKS(16)

extern "C" void __tsan_read_range(void* at, size_t bytes) {
  emulator::check_instrumented(at, bytes, READ, EMULATOR_CALLER);
}

extern "C" void __tsan_write_range(void* at, size_t bytes) {
  emulator::check_instrumented(at, bytes, WRITE, EMULATOR_CALLER);
}

extern "C" void __tsan_init() {}
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}
