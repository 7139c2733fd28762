// SPDX-License-Identifier: Apache-2.0
#include "copies.h"

#include <cstring>
#include <utility>

#include "access.h"
#include "block.h"
#include "memory.h"

namespace emulator {

void CopyQueue::commit() { groups_.push_back(std::exchange(open_, {})); }

void CopyQueue::wait(size_t pending) {
  while (groups_.size() > pending) {
    for (const Copy& copy : groups_.front()) {
      std::memset(copy.to, 0, static_cast<size_t>(copy.bytes));
      std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.wanted));
      finish_copy(copy.to, static_cast<size_t>(copy.bytes), copy.pc);
    }
    groups_.pop_front();
  }
}

void CopyQueue::drop() {
  open_.clear();
  if (!groups_.empty()) groups_.clear();
}

}  // namespace emulator

extern "C" void emulator_copy_async(void* to, const void* from, int bytes, int wanted) {
  using namespace emulator;
  const uintptr_t pc = EMULATOR_CALLER;
  const size_t size = static_cast<size_t>(bytes);
  if (wanted > 0) {
    check_access(from, static_cast<size_t>(wanted), size, {true, false, false, false}, pc);
  }
  check_access(to, size, size, {false, true, false, true}, pc);
  // Old content is no longer to be relied on.
  std::memset(to, POISON, size);
  current->copies.begin({static_cast<char*>(to), static_cast<const char*>(from), bytes, wanted, pc});
}

extern "C" void emulator_copy_commit() { emulator::current->copies.commit(); }

extern "C" void emulator_copy_wait(int pending) {
  emulator::current->copies.wait(static_cast<size_t>(pending));
}
