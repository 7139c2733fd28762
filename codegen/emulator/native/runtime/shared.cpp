// SPDX-License-Identifier: Apache-2.0
#include "shared.h"

#include <algorithm>
#include <cstring>

#include "block.h"
#include "memory.h"

namespace emulator {
namespace {

constexpr size_t DYNAMIC_ALIGNMENT = 128;
const char DYNAMIC_KEY = 0;

}  // namespace

void begin_shared(size_t dynamic_bytes) {
  if (dynamic_bytes == 0) return;
  memory.add("shared", Role::SHARED, dynamic_bytes, DYNAMIC_ALIGNMENT).key = &DYNAMIC_KEY;
}

// The regions go with the kernel that declared them.
void end_shared() { memory.remove_shared(); }

void poison_shared() {
  for (Region* region : memory.regions) {
    if (region->role == Role::SHARED) std::memset(region->base, POISON, region->bytes);
  }
}

}  // namespace emulator

extern "C" void* emulator_dynamic_shared() {
  using namespace emulator;
  for (Region* region : memory.regions) {
    if (region->key == &DYNAMIC_KEY) return region->base;
  }
  // A launch without dynamic shared memory: the pointer exists, what it points to does not.
  Region& empty = memory.add("shared", Role::SHARED, 0, DYNAMIC_ALIGNMENT);
  empty.key = &DYNAMIC_KEY;
  return empty.base;
}

extern "C" void* emulator_static_shared(const void* key, const char* name, unsigned long bytes,
                                        unsigned long alignment) {
  using namespace emulator;
  for (Region* region : memory.regions) {
    if (region->key == key) return region->base;
  }
  Region& region = memory.add(name, Role::SHARED, bytes, std::max<size_t>(alignment, 16));
  region.key = key;
  return region.base;
}

// A number for each byte of shared memory, below 2**32 and never 0: the region's place in the list, and the
// byte in it.
extern "C" unsigned emulator_shared_address(const void* pointer) {
  using namespace emulator;
  for (size_t i = 0; i < memory.regions.size(); ++i) {
    const Region& region = *memory.regions[i];
    if (region.role != Role::SHARED || !region.holds(pointer, 1)) continue;
    return static_cast<unsigned>((i + 1) << 20) +
           static_cast<unsigned>(static_cast<const char*>(pointer) - region.base);
  }
  Finding finding = {"out_of_bounds", "the address of shared memory is asked for what is none"};
  finding.actor = here(reinterpret_cast<uintptr_t>(__builtin_return_address(0)) - 1);
  report_and_stop(finding);
}
