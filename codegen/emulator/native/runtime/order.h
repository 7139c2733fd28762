// SPDX-License-Identifier: Apache-2.0
// Which accesses are certain to come before which: happens-before, as the CUDA memory model defines it for
// barriers, __syncwarp, and a fence followed by an atomic that another thread's atomic reads from, followed
// by a fence of that thread. Two accesses that it leaves unordered can meet in either order on a GPU,
// whatever order this run took.
//
// One clock counts events of all threads. It never goes back within a process, so a record's clock tells its
// block and its kernel too.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "shadow.h"

namespace emulator {

// What an atomic of one block hands on: all of its block's accesses before `everyone`, and of some threads
// more.
struct Published {
  uint32_t block_start = 0;
  uint32_t everyone = 0;
  std::map<int, uint32_t> threads;

  bool empty() const { return block_start == 0; }
  void join(const Published& other);
  bool covers(const Record& record) const;
};

// The first `count` publications of the atomics at one address.
struct Acquired {
  const void* address;
  size_t count;
};

// What a thread knows: of its own warp's lanes, the clock up to which their accesses precede what it does
// now.
struct Knowledge {
  uint32_t clock = 0;
  uint32_t lanes[32] = {};
  Published fenced;
  std::vector<Acquired> observed;  // by its atomics, with no fence behind them yet
  std::vector<Acquired> acquired;
};

void begin_kernel_order();
void begin_block_order(int64_t block);
void order_by_barrier();
void order_by_meet(int warp, unsigned lanes);
void order_by_fence();
void order_by_atomic(const void* address);

// Whether `record` precedes what the current thread does now.
bool precedes_now(const Record& record);

// The block that ran at that time.
int64_t block_at(uint32_t clock);

// When the current block started: older records of shared memory are of other blocks, and mean nothing.
uint32_t block_start();

}  // namespace emulator
