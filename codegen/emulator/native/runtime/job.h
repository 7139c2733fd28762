// SPDX-License-Identifier: Apache-2.0
// What to do, as it comes over the standard input: lines of words, and the arrays' bytes after their lines.
#pragma once

#include <string>
#include <vector>

#include "block.h"
#include "memory.h"

namespace emulator {

struct Array {
  std::string name;
  Role role;
  size_t bytes;
  size_t zeroed;              // from its start
  std::vector<char> content;  // as many bytes as come with it
};

// A word of the kernel's argument struct: a number, or the address of an array.
struct Word {
  bool is_address;
  uint64_t value;
};

// One launch: a kernel and perhaps a second one after it.
struct Call {
  double time_limit_s = 0;
  Order order;
  std::vector<Geometry> kernels;
  std::vector<Array> arrays;
  std::vector<Word> words;
};

struct Job {
  std::string library;
  std::vector<Call> calls;
};

Job read_job();

}  // namespace emulator
