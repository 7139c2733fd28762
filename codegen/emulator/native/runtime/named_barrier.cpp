// SPDX-License-Identifier: Apache-2.0
#include "named_barrier.h"

#include "access.h"
#include "block.h"
#include "report.h"

namespace emulator {
namespace {

struct NamedBarrier {
  int threads;  // that it is for, this time
  int arrived;
  uint64_t passed;  // how often
  Actor first;
  Token arriving, complete;
};

NamedBarrier named[16];

[[noreturn]] void refuse(const char* kind, const char* detail, uintptr_t pc, const Actor& other = {}) {
  Finding finding = {kind, detail};
  finding.actor = here(pc);
  finding.other = other;
  report_and_stop(finding);
}

}  // namespace

void begin_named_barriers() {
  for (NamedBarrier& barrier : named) barrier = {};
}

}  // namespace emulator

extern "C" void emulator_named_barrier(int id, int count, int waits) {
  using namespace emulator;
  const uintptr_t pc = EMULATOR_CALLER;
  if (id < 1 || id > 15) refuse("undefined", "a barrier's number that is not 1 to 15", pc);
  if (count <= 0 || count % 32 != 0 || count > block_threads)
    refuse("undefined", "a barrier of threads that are not whole warps of the block", pc);
  NamedBarrier& barrier = named[id];
  if (barrier.arrived == 0) {
    barrier.threads = count;
    barrier.first = here(pc);
    barrier.arriving = {};
  } else if (barrier.threads != count) {
    refuse("divergent_barrier", "one barrier, two numbers of threads", pc, barrier.first);
  }
  order_by_release(barrier.arriving);
  const uint64_t mine = barrier.passed;
  if (++barrier.arrived == barrier.threads) {
    settle(barrier.arriving);
    barrier.complete = barrier.arriving;
    barrier.arrived = 0;
    ++barrier.passed;
    wake(&barrier);
  }
  if (waits == 0) return;
  while (barrier.passed == mine) wait_for(State::AT_NAMED_BARRIER, &barrier, pc);
  order_by_acquire(barrier.complete);
}
