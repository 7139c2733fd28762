// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "access.h"
#include "order.h"

extern "C" void emulator_atomic_begin(void* address, void* value, int bytes, int reads) {
  using namespace emulator;
  const size_t size = static_cast<size_t>(bytes);
  check_access(address, size, size, {reads != 0, true, true, false}, EMULATOR_CALLER);
  order_by_atomic(address);
  std::memcpy(value, address, size);
}

extern "C" void emulator_atomic_end(void* address, const void* value, int bytes) {
  std::memcpy(address, value, static_cast<size_t>(bytes));
}
