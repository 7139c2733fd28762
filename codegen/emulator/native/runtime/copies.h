// SPDX-License-Identifier: Apache-2.0
// cp.async: copies that may arrive at any time until they are waited for. Here they arrive at the wait and
// never before, so that a kernel that does not wait is seen to be wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace emulator {

struct Copy {
  char* to;
  const char* from;
  int bytes;   // written
  int wanted;  // of them read; the rest is zero
  uintptr_t pc;
};

// The copies of one thread.
class CopyQueue {
 public:
  void begin(const Copy& copy) { open_.push_back(copy); }
  void commit();
  void wait(size_t pending);
  void drop();

 private:
  std::vector<Copy> open_;
  std::deque<std::vector<Copy>> groups_;
};

}  // namespace emulator
