// SPDX-License-Identifier: Apache-2.0
#include "barrier.h"

#include "block.h"

namespace emulator {
namespace {

int live = 0, waiting = 0;
int votes = 0, result = 0;  // threads whose predicate holds, at this barrier and at the last one

Thread* first_in(State state) {
  for (int i = 0; i < block_threads; ++i) {
    if (threads[static_cast<size_t>(i)].state == state) return &threads[static_cast<size_t>(i)];
  }
  return nullptr;
}

// Everybody who can come is here: were all of them meant to?
void check_complete() {
  const Thread* first = first_in(State::AT_BARRIER);
  Finding finding = {"missed_barrier", ""};
  finding.actor = {current_block, first->id, 0, first->site};
  if (live < block_threads) {
    finding.other = {current_block, first_in(State::DONE)->id, 0, {nullptr, 0, 0}};
    report_and_stop(finding);
  }
  finding.kind = "divergent_barrier";
  for (int i = 0; i < block_threads; ++i) {
    const Thread& thread = threads[static_cast<size_t>(i)];
    if (thread.site.id == first->site.id) continue;
    finding.other = {current_block, thread.id, 0, thread.site};
    report_and_stop(finding);
  }
}

void complete() {
  check_complete();
  result = votes;
  votes = waiting = 0;
  order_by_barrier();
  for (int i = 0; i < block_threads; ++i) threads[static_cast<size_t>(i)].state = State::READY;
}

int arrive(EmulatorSite site, bool vote) {
  current->state = State::AT_BARRIER;
  current->site = site;
  votes += vote;
  // The last to arrive wakes the others, and waits for its own next turn like them.
  if (++waiting == live) complete();
  wait_as(current->state, site);
  return result;
}

}  // namespace

void begin_barriers(int count) {
  live = count;
  waiting = votes = 0;
}

void leave_barrier() {
  --live;
  if (live > 0 && waiting == live) complete();
}

int threads_left() { return live; }

}  // namespace emulator

extern "C" void emulator_barrier(EmulatorSite site) { emulator::arrive(site, false); }

extern "C" int emulator_barrier_reduce(EmulatorSite site, EmulatorOperation operation, int predicate) {
  const int count = emulator::arrive(site, predicate != 0);
  if (operation == EMULATOR_COUNT) return count;
  return operation == EMULATOR_AND ? count == emulator::block_threads : count > 0;
}
