// SPDX-License-Identifier: Apache-2.0
#include "memory.h"

#include <sys/mman.h>

#include <cstring>

#include "block.h"
#include "report.h"

#if defined(EMULATOR_ASAN)
#include <sanitizer/asan_interface.h>
#endif

namespace emulator {
namespace {

constexpr size_t PAGE = 65536;
constexpr size_t GAP = size_t{16} << 20;

void release(Region* region) {
#if defined(EMULATOR_ASAN)
  __asan_unpoison_memory_region(region->pages, region->page_bytes);
#endif
  munmap(region->pages - GAP, region->page_bytes + 2 * GAP);
  region->shadow.clear();
  delete region;
}

size_t rounded(size_t value, size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace

Memory memory;

// The region's end lies as close to the end of its pages as its alignment allows: past them an overrun stops
// at once in every build; before them it is found by AddressSanitizer, the race build, or check_margins.
Region& Memory::add(const std::string& name, Role role, size_t bytes, size_t alignment) {
  const size_t used = rounded(bytes, alignment), page_bytes = rounded(used ? used : 1, PAGE);
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* reserved = mmap(nullptr, page_bytes + 2 * GAP, PROT_NONE, flags, -1, 0);
  if (reserved == MAP_FAILED) fail("no memory for the arrays");
  char* pages = static_cast<char*>(reserved) + GAP;
  if (mprotect(pages, page_bytes, PROT_READ | PROT_WRITE) != 0) fail("no memory for the arrays");
  auto* region = new Region{name, role, pages + page_bytes - used, bytes, 0, pages, page_bytes, nullptr, {}};
  std::memset(pages, POISON, page_bytes);
#if defined(EMULATOR_ASAN)
  __asan_poison_memory_region(pages, static_cast<size_t>(region->base - pages));
  __asan_poison_memory_region(region->base + bytes, used - bytes);
#endif
  regions.push_back(region);
  return *region;
}

void Memory::clear() {
  for (Region* region : regions) release(region);
  regions.clear();
  last_ = nullptr;
}

void Memory::remove_shared() {
  std::vector<Region*> rest;
  for (Region* region : regions) {
    if (region->role == Role::SHARED) {
      release(region);
    } else {
      rest.push_back(region);
    }
  }
  regions.swap(rest);
  last_ = nullptr;
}

Region* Memory::find(const void* pointer) {
  if (last_ != nullptr && last_->holds(pointer, 1)) return last_;
  for (Region* region : regions) {
    if (region->holds(pointer, 1)) return last_ = region;
  }
  return nullptr;
}

Region* Memory::nearest(const void* pointer) {
  const char* at = static_cast<const char*>(pointer);
  for (Region* region : regions) {
    if (at >= region->pages - GAP && at < region->pages + region->page_bytes + GAP) return region;
  }
  return nullptr;
}

void Memory::check_margins() {
#if !defined(EMULATOR_ASAN)
  const auto clean = [](const char* from, const char* to) {
    while (from < to && static_cast<unsigned char>(*from) == POISON) ++from;
    return from;
  };
  for (Region* region : regions) {
    const char *end = region->base + region->bytes, *limit = region->pages + region->page_bytes;
    const char* bad = clean(region->pages, region->base);
    if (bad == region->base) bad = clean(end, limit);
    if (bad == limit) continue;
    Finding finding = {"out_of_bounds", "written during this launch, seen at its end", region->name.c_str()};
    finding.offset = bad - region->base;
    finding.array_bytes = region->bytes;
    finding.write = true;
    report(finding);
    std::memset(region->pages, POISON, static_cast<size_t>(region->base - region->pages));
    std::memset(region->base + region->bytes, POISON, static_cast<size_t>(limit - end));
  }
#endif
}

}  // namespace emulator
