// SPDX-License-Identifier: Apache-2.0
// What a thread has begun and what goes on in the background: bulk copies to global memory, and products of
// four warps. Both read shared memory until they are waited for, and their results are there no sooner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "shadow.h"

namespace emulator {

// A piece of memory that is read in the background.
struct Reading {
  const char* from;
  size_t bytes;
  uintptr_t pc;
  std::vector<Record> seen;
};

// Bulk copies of one thread, from shared to global memory.
class StoreQueue {
 public:
  void begin(char* to, Reading reading) { open_.push_back({to, std::move(reading)}); }
  void commit();
  void wait(size_t pending);

  // The thread has ended, and what it read perhaps with it.
  void end();

 private:
  struct Store {
    char* to;
    Reading reading;
  };
  std::vector<Store> open_;
  std::deque<std::vector<Store>> groups_;
};

// A thread's part in products: its sums, which are not to be touched before they are waited for.
class ProductQueue {
 public:
  bool begun = false;  // since the last wait, with no use of the sums in between
  uint32_t count = 0;

  void read(Reading reading) { readings_.push_back({closed_, std::move(reading)}); }
  float* sums(float* of_kernel, size_t count);
  void commit() { ++closed_; }
  void wait(size_t pending);
  void clear();

 private:
  struct Sums {
    uint32_t group;
    float* of_kernel;
    std::vector<float> values;
  };
  struct Operand {
    uint32_t group;
    Reading reading;
  };
  uint32_t closed_ = 0;  // groups
  std::vector<Sums> sums_;
  std::vector<Operand> readings_;
};

// At a block's end: the four warps of each group have begun as many products.
void check_products();

}  // namespace emulator
