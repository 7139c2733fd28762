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
#include <memory>
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

// Of each thread of the block, and behind them of each barrier that tells of the copy engine's writes, the
// clock up to which its accesses precede something. Null: nothing of nobody.
using Clocks = std::shared_ptr<const std::vector<uint32_t>>;

Clocks joined(const Clocks& a, const Clocks& b);

// What those who arrive at a barrier of some threads hand to those who wait there.
struct Token {
  std::vector<uint32_t> known;
  Clocks heard, published;  // joined of those who have arrived
  Published fenced;
  std::vector<Acquired> acquired;
};

// What a thread knows: of its own warp's lanes, the clock up to which their accesses precede what it does
// now; `heard`: of all threads, from barriers of some threads; `published`: whose writes the copy engine
// sees.
struct Knowledge {
  uint32_t clock = 0;
  uint32_t lanes[32] = {};
  Clocks heard, published;
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
void order_by_publishing();

// The current thread hands on what it knows; gets to know what is handed on.
void order_by_release(Token& token);
void order_by_acquire(const Token& token);

// All have arrived that hand something on.
void settle(Token& token);

// A moment of the copy engine's: writes that a barrier tells of, to all who will have waited for it.
uint32_t order_by_landing(Token& token, int slot);

// Whether `record` precedes what the current thread does now.
bool precedes_now(const Record& record);

// Whether the copy engine sees what that write wrote, if the current thread starts it now.
bool engine_sees(const Record& record);

// Whether that was in the kernel that runs.
bool is_of_kernel(const Record& record);

// The block that ran at that time.
int64_t block_at(uint32_t clock);

// When the current block started: older records of shared memory are of other blocks, and mean nothing.
uint32_t block_start();

}  // namespace emulator
