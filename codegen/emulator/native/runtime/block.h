// SPDX-License-Identifier: Apache-2.0
// One block after another, each of its threads a fiber; which thread goes next is decided here alone, so a
// run can be repeated exactly.
#pragma once

#include <cstdint>
#include <vector>

#include "copies.h"
#include "engine.h"
#include "fiber.h"
#include "interface.h"
#include "order.h"
#include "report.h"

namespace emulator {

enum class State { READY, AT_BARRIER, AT_MEET, AT_MBARRIER, AT_NAMED_BARRIER, DONE };

struct Meet;

struct Thread {
  int id = 0;
  State state = State::DONE;
  EmulatorSite site = {nullptr, 0, 0};  // where it waits
  uintptr_t pc = 0;                     // or, if that says nothing, here
  const void* waits_for = nullptr;      // a barrier that is not the whole block's
  Meet* meet = nullptr;
  Fiber fiber;
  CopyQueue copies;
  StoreQueue stores;
  ProductQueue products;
  Knowledge knowledge;
};

// How a kernel is started.
struct Geometry {
  const char* name = "";
  int64_t grid = 0;
  int block = 0;
  size_t shared_bytes = 0;
};

// Which thread and block goes first.
struct Order {
  enum Kind { FORWARD, REVERSE, SHUFFLE } kind = FORWARD;
  uint64_t seed = 0;
};

void run_kernel(const Geometry& geometry, const EmulatorEntry& entry, const void* arguments,
                const Order& order);
void set_variables(const EmulatorVariables& variables);

// The thread that runs, null between blocks; the block that runs, -1 outside of a kernel.
extern Thread* current;
extern int64_t current_block;
extern std::vector<Thread> threads;
extern int block_threads;

// Lets others run until the state of the current thread is READY again.
void wait_as(State state, EmulatorSite site);
void wait_for(State state, const void* barrier, uintptr_t pc);

// All who wait for that barrier look again.
void wake(const void* barrier);

// The current thread as a side of a finding.
Actor here(uintptr_t pc = 0);

}  // namespace emulator
