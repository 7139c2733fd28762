// SPDX-License-Identifier: Apache-2.0
// What the race detector remembers of each piece of memory: who wrote it last, and who read it since.
#pragma once

#include <cstddef>
#include <cstdint>

namespace emulator {

// An access. The clock is the accessing thread's; 0: there was none. The pc counts from the kernel's code.
struct Record {
  uint32_t clock;
  uint32_t pc;
  uint16_t thread;
  bool atomic : 1;
  bool under_way : 1;  // a background copy that nobody has waited for
  bool engine : 1;     // by the copy engine: `thread` is the slot of the barrier that tells of it
};

// One thread can conflict only with others, so one reader is not enough: the last; the last before it of
// another thread; the last of another warp, which no meeting of this one's lanes can have ordered.
struct Cell {
  Record write;
  Record last, before, elsewhere;
};

class Shadow {
 public:
  // The cells of bytes [offset, offset + count) of a region of `bytes`, in order. They cover 4 bytes each,
  // until a smaller or misaligned access comes: then all are split.
  Cell* cells(size_t offset, size_t count, size_t bytes, size_t* cell_count) {
    const size_t grain = size_t{1} << shift_;
    if (((offset | count) & (grain - 1)) != 0 || first_ == nullptr) prepare(offset | count, bytes);
    *cell_count = count >> shift_;
    return first_ + (offset >> shift_);
  }
  void clear();

 private:
  void prepare(size_t bits, size_t bytes);

  Cell* first_ = nullptr;
  size_t mapped_ = 0;
  int shift_ = 2;
};

}  // namespace emulator
