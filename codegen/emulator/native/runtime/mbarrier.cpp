// SPDX-License-Identifier: Apache-2.0
#include "mbarrier.h"

#include <cstring>
#include <list>

#include "access.h"
#include "block.h"
#include "memory.h"
#include "report.h"

namespace emulator {
namespace {

struct Load {
  char* to;
  const char* from;
  size_t bytes;
  uintptr_t pc;
};

struct Mbarrier {
  void* at;
  int slot;        // of its copies' writes in what threads know
  Record init;     // the access
  bool fenced;     // since then, by the same thread
  uint32_t count;  // arrivals of a phase
  uint32_t missing;
  uint64_t announced;  // bytes, in this phase
  uint64_t phase;
  std::vector<Load> loads;  // of this phase
  Token arriving, passed;   // of the phases so far; of those that have ended

  uint64_t begun_bytes() const {
    uint64_t sum = 0;
    for (const Load& load : loads) sum += load.bytes;
    return sum;
  }
};

std::list<Mbarrier> mbarriers;  // of the block

[[noreturn]] void stop(const char* kind, const char* detail, uintptr_t pc) {
  Finding finding = {kind, detail};
  finding.actor = here(pc);
  report_and_stop(finding);
}

Mbarrier* known(const void* at) {
  for (Mbarrier& each : mbarriers) {
    if (each.at == at) return &each;
  }
  return nullptr;
}

Mbarrier& mbarrier_at(void* at, uintptr_t pc) {
  require_shared(at, 8, pc);
  check_access(at, 8, 8, {true, true, true, false}, pc);
  Mbarrier* found = known(at);
  if (found == nullptr) stop("uninitialised", "a barrier without mbarrier_init", pc);
  if (!precedes_now(found->init)) {
    Finding finding = {"race", "nothing orders a barrier's mbarrier_init and its use"};
    finding.actor = here(pc);
    finding.other = {current_block, found->init.thread, found->init.pc + code_base(), {nullptr, 0, 0}};
    report(finding);
  }
  return *found;
}

// Ends the phase if nothing is missing. Copies land because somebody waits for them: `demanded`.
void end_phase_if_complete(Mbarrier& barrier, bool demanded, uintptr_t pc) {
  const uint64_t begun = barrier.begun_bytes();
  if (barrier.missing > 0 || (begun > 0 && !demanded)) return;
  if (begun > barrier.announced) stop("undefined", "more bytes come than were announced to the barrier", pc);
  if (begun < barrier.announced) return;
  if (begun > 0) {
    const uint32_t moment = order_by_landing(barrier.arriving, barrier.slot);
    for (const Load& load : barrier.loads) {
      std::memcpy(load.to, load.from, load.bytes);
      land(load.to, load.bytes, load.pc, moment, barrier.slot);
    }
  }
  barrier.loads.clear();
  barrier.announced = 0;
  barrier.missing = barrier.count;
  ++barrier.phase;
  settle(barrier.arriving);
  barrier.passed = barrier.arriving;
  wake(&barrier);
}

}  // namespace

void end_mbarriers() {
  for (const Mbarrier& barrier : mbarriers) {
    for (const Load& load : barrier.loads) {
      Finding finding = {"race", "the block ends before a bulk copy into its shared memory was waited for"};
      finding.actor = {current_block, COPY_ENGINE, load.pc, {nullptr, 0, 0}};
      report(finding);
    }
  }
  mbarriers.clear();
}

}  // namespace emulator

extern "C" void emulator_mbarrier_init(void* at, unsigned count) {
  using namespace emulator;
  const uintptr_t pc = EMULATOR_CALLER;
  require_shared(at, 8, pc);
  check_access(at, 8, 8, {false, true, false, false}, pc);
  if (count == 0) stop("undefined", "a barrier for no arrivals", pc);
  if (known(at) != nullptr) stop("undefined", "a second mbarrier_init of one barrier", pc);
  const int slot = block_threads + static_cast<int>(mbarriers.size());
  const Record init = {current->knowledge.clock,
                       static_cast<uint32_t>(pc - code_base()),
                       static_cast<uint16_t>(current->id),
                       false,
                       false,
                       false};
  mbarriers.push_back({at, slot, init, false, count, count, 0, 0, {}, {}, {}});
}

extern "C" void emulator_mbarrier_fence() {
  using namespace emulator;
  for (Mbarrier& barrier : mbarriers) barrier.fenced |= barrier.init.thread == current->id;
}

extern "C" void emulator_mbarrier_arrive(void* at, unsigned bytes) {
  using namespace emulator;
  const uintptr_t pc = EMULATOR_CALLER;
  Mbarrier& barrier = mbarrier_at(at, pc);
  if (barrier.missing == 0) stop("undefined", "one arrival more than the barrier's phase has", pc);
  --barrier.missing;
  barrier.announced += bytes;
  order_by_release(barrier.arriving);
  end_phase_if_complete(barrier, false, pc);
  wake(&barrier);
}

extern "C" void emulator_mbarrier_wait(void* at, unsigned parity) {
  using namespace emulator;
  const uintptr_t pc = EMULATOR_CALLER;
  Mbarrier& barrier = mbarrier_at(at, pc);
  if (parity > 1) stop("undefined", "a parity that is neither 0 nor 1", pc);
  while (barrier.phase % 2 == parity) {
    end_phase_if_complete(barrier, true, pc);
    if (barrier.phase % 2 != parity) break;
    wait_for(State::AT_MBARRIER, &barrier, pc);
  }
  order_by_acquire(barrier.passed);
}

extern "C" void emulator_bulk_load(void* to, const void* from, unsigned bytes, void* at) {
  using namespace emulator;
  const uintptr_t pc = EMULATOR_CALLER;
  Mbarrier& barrier = mbarrier_at(at, pc);
  if (!barrier.fenced) {
    Finding finding = {"unpublished", "a barrier's mbarrier_init has no fence_barrier_init behind it"};
    finding.actor = here(pc);
    report(finding);
  }
  if (bytes % 16 != 0) stop("misaligned", "a bulk copy of bytes that are no multiple of 16", pc);
  if (bytes == 0) return;
  require_shared(to, bytes, pc);
  check_access(from, bytes, 16, {true, false, false, false}, pc);
  check_access(to, bytes, 16, {false, true, false, true, true}, pc);
  std::memset(to, POISON, bytes);
  barrier.loads.push_back({static_cast<char*>(to), static_cast<const char*>(from), bytes, pc});
  wake(&barrier);
}
