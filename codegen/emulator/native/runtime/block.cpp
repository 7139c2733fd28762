// SPDX-License-Identifier: Apache-2.0
#include "block.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "barrier.h"
#include "mbarrier.h"
#include "memory.h"
#include "named_barrier.h"
#include "shared.h"
#include "warp.h"

namespace emulator {

Thread* current = nullptr;
int64_t current_block = -1;
std::vector<Thread> threads;
int block_threads = 0;

namespace {

constexpr size_t STACK_BYTES = 256 * 1024;

EmulatorVariables variables;
Fiber scheduler;
void (*kernel)(const void*) = nullptr;
const void* kernel_arguments = nullptr;

void set_triple(unsigned* to, int64_t x, unsigned rest) {
  to[0] = static_cast<unsigned>(x);
  to[1] = to[2] = rest;
}

// A fiber serves one thread of each block, block after block.
void thread_body() {
  enter_fiber();
  while (true) {
    kernel(kernel_arguments);
    current->stores.end();
    current->state = State::DONE;
    current->copies.drop();
    leave_barrier();
    leave_warp(*current);
    switch_fiber(current->fiber, scheduler);
  }
}

void resume(Thread& thread) {
  current = &thread;
  set_triple(variables.thread_index, thread.id, 0);
  switch_fiber(scheduler, thread.fiber);
  current = nullptr;
}

[[noreturn]] void report_deadlock() {
  const Thread *first = nullptr, *second = nullptr;
  for (int i = 0; i < block_threads; ++i) {
    const Thread& thread = threads[static_cast<size_t>(i)];
    if (thread.state == State::DONE) continue;
    if (first == nullptr) first = &thread;
    if (thread.state != first->state || thread.site.id != first->site.id || thread.pc != first->pc)
      second = &thread;
    if (second != nullptr) break;
  }
  Finding finding = {"deadlock", ""};
  finding.actor = {current_block, first->id, first->pc, first->site};
  if (second != nullptr) finding.other = {current_block, second->id, second->pc, second->site};
  report_and_stop(finding);
}

void run_block(const std::vector<int>& turns) {
  begin_barriers(block_threads);
  begin_named_barriers();
  begin_warps();
  while (threads_left() > 0) {
    bool moved = false;
    for (const int turn : turns) {
      Thread& thread = threads[static_cast<size_t>(turn)];
      if (thread.state != State::READY) continue;
      moved = true;
      resume(thread);
    }
    if (!moved) report_deadlock();
  }
  end_mbarriers();
  check_products();
}

template <class T>
std::vector<T> ordered(size_t count, const Order& order, uint64_t salt) {
  std::vector<T> turns(count);
  std::iota(turns.begin(), turns.end(), T{0});
  if (order.kind == Order::REVERSE) std::reverse(turns.begin(), turns.end());
  if (order.kind != Order::SHUFFLE) return turns;
  std::mt19937_64 random(order.seed * 0x9e3779b97f4a7c15u + salt);
  for (size_t i = count; i > 1; --i) std::swap(turns[i - 1], turns[random() % i]);
  return turns;
}

}  // namespace

void set_variables(const EmulatorVariables& of_kernel) { variables = of_kernel; }

void run_kernel(const Geometry& geometry, const EmulatorEntry& entry, const void* arguments,
                const Order& order) {
  set_kernel(geometry.name);
  kernel = entry.call;
  kernel_arguments = arguments;
  block_threads = geometry.block;
  while (threads.size() < static_cast<size_t>(block_threads)) {
    threads.emplace_back();
    threads.back().id = static_cast<int>(threads.size()) - 1;
    threads.back().fiber = make_fiber(thread_body, STACK_BYTES, threads.back().id);
  }
  set_triple(variables.block_size, block_threads, 1);
  set_triple(variables.grid_size, geometry.grid, 1);
  begin_kernel_order();
  begin_shared(geometry.shared_bytes);
  for (const int64_t block : ordered<int64_t>(static_cast<size_t>(geometry.grid), order, 0)) {
    current_block = block;
    set_triple(variables.block_index, block, 0);
    poison_shared();
    begin_block_order(block);
    const auto turns =
        ordered<int>(static_cast<size_t>(block_threads), order, static_cast<uint64_t>(block) + 1);
    for (const int turn : turns) threads[static_cast<size_t>(turn)].state = State::READY;
    run_block(turns);
  }
  memory.check_margins();
  end_shared();
  current_block = -1;
}

void wait_as(State state, EmulatorSite site) {
  current->state = state;
  current->site = site;
  current->pc = 0;
  switch_fiber(current->fiber, scheduler);
}

void wait_for(State state, const void* barrier, uintptr_t pc) {
  current->state = state;
  current->site = {nullptr, 0, 0};
  current->pc = pc;
  current->waits_for = barrier;
  switch_fiber(current->fiber, scheduler);
}

void wake(const void* barrier) {
  for (int id = 0; id < block_threads; ++id) {
    Thread& thread = threads[static_cast<size_t>(id)];
    const bool waits = thread.state == State::AT_MBARRIER || thread.state == State::AT_NAMED_BARRIER;
    if (waits && thread.waits_for == barrier) thread.state = State::READY;
  }
}

Actor here(uintptr_t pc) {
  return {current_block, current != nullptr ? current->id : -1, pc, {nullptr, 0, 0}};
}

}  // namespace emulator

extern "C" void emulator_yield() { emulator::wait_as(emulator::State::READY, {nullptr, 0, 0}); }
