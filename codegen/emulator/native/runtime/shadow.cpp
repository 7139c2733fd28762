// SPDX-License-Identifier: Apache-2.0
#include "shadow.h"

#include <sys/mman.h>

#include "report.h"

namespace emulator {

void Shadow::prepare(size_t bits, size_t bytes) {
  int shift = shift_;
  while ((bits & ((size_t{1} << shift) - 1)) != 0) --shift;
  const size_t count = (bytes >> shift) + 1, old_count = (bytes >> shift_) + 1, wanted = count * sizeof(Cell);
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* memory = mmap(nullptr, wanted, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (memory == MAP_FAILED) fail("no memory for the race detector");
  Cell* cells = static_cast<Cell*>(memory);
  const int parts = 1 << (shift_ - shift);
  for (size_t i = 0; first_ != nullptr && i < old_count; ++i) {
    for (int part = 0; part < parts; ++part) {
      const size_t at = i * static_cast<size_t>(parts) + static_cast<size_t>(part);
      if (at < count) cells[at] = first_[i];
    }
  }
  clear();
  first_ = cells;
  mapped_ = wanted;
  shift_ = shift;
}

void Shadow::clear() {
  if (first_ != nullptr) munmap(first_, mapped_);
  first_ = nullptr;
}

}  // namespace emulator
