// SPDX-License-Identifier: Apache-2.0
// The memory that a kernel may touch: named regions of exact size, far apart, with pages around them that are
// not accessible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "shadow.h"

namespace emulator {

enum class Role { INPUT, OUTPUT, WORKSPACE, UPDATED, SHARED };

// Uninitialised memory holds this: NaN as any floating-point number, and no sensible index.
constexpr unsigned char POISON = 0xff;

struct Region {
  std::string name;
  Role role;
  char* base;
  size_t bytes;
  size_t initialised;  // bytes from the start that hold values when a kernel starts
  char* pages;         // what is mapped around it
  size_t page_bytes;
  const void* key = nullptr;  // of a __shared__ declaration
  Shadow shadow;

  bool holds(const void* pointer, size_t count) const {
    const size_t offset = static_cast<size_t>(static_cast<const char*>(pointer) - base);
    return offset < bytes && count <= bytes - offset;
  }
};

class Memory {
 public:
  // The base is a multiple of `alignment`. Filled with POISON.
  Region& add(const std::string& name, Role role, size_t bytes, size_t alignment);
  void clear();
  void remove_shared();

  // The region that `pointer` lies in, or null.
  Region* find(const void* pointer);

  // The region that `pointer` was probably meant for: the nearest one; null if there is none near.
  Region* nearest(const void* pointer);

  // Reports regions whose surroundings were written to (where nothing else would have noticed).
  void check_margins();

  // Pointers: growing must not move regions.
  std::vector<Region*> regions;

 private:
  Region* last_ = nullptr;  // that was found
};

extern Memory memory;

}  // namespace emulator
