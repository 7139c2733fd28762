// SPDX-License-Identifier: Apache-2.0
#include "order.h"

#include <algorithm>
#include <unordered_map>

#include "block.h"

namespace emulator {
namespace {

uint32_t now = 0;  // the clock
uint32_t kernel_started = 0, block_started = 0, barrier_passed = 0;
Published block_fenced;                // fenced before the last barrier, so by now of every thread
std::vector<Acquired> block_acquired;  // acquired before the last barrier
std::unordered_map<const void*, std::vector<Published>> published;

uint32_t tick() {
  if (now == UINT32_MAX) fail("too many synchronisations for one process");
  return ++now;
}

Thread& thread_of(int id) { return threads[static_cast<size_t>(id)]; }

void acquire(std::vector<Acquired>& into, const Acquired& more) {
  for (Acquired& each : into) {
    if (each.address != more.address) continue;
    each.count = std::max(each.count, more.count);
    return;
  }
  into.push_back(more);
}

void acquire_all(std::vector<Acquired>& into, const std::vector<Acquired>& more) {
  for (const Acquired& each : more) acquire(into, each);
}

bool is_published(const Record& record, const std::vector<Acquired>& acquired) {
  for (const Acquired& each : acquired) {
    const auto& list = published[each.address];
    for (size_t i = 0; i < each.count && i < list.size(); ++i) {
      if (list[i].covers(record)) return true;
    }
  }
  return false;
}

void raise(std::vector<uint32_t>& clocks, size_t index, uint32_t to) {
  if (clocks.size() <= index) clocks.resize(index + 1);
  clocks[index] = std::max(clocks[index], to);
}

void raise_all(std::vector<uint32_t>& clocks, const Clocks& to) {
  if (to == nullptr) return;
  if (clocks.size() < to->size()) clocks.resize(to->size());
  for (size_t i = 0; i < to->size(); ++i) clocks[i] = std::max(clocks[i], (*to)[i]);
}

bool covers(const Clocks& clocks, const Record& record) {
  return clocks != nullptr && record.thread < clocks->size() && record.clock < (*clocks)[record.thread];
}

// What the current thread knows of its own warp, and itself at this moment.
void raise_own(std::vector<uint32_t>& clocks, uint32_t moment) {
  const Knowledge& knowledge = current->knowledge;
  const size_t first = static_cast<size_t>(current->id / 32 * 32);
  for (size_t lane = 0; lane < 32; ++lane) {
    if (knowledge.lanes[lane] > barrier_passed) raise(clocks, first + lane, knowledge.lanes[lane]);
  }
  raise(clocks, static_cast<size_t>(current->id), moment);
}

struct Start {
  uint32_t clock;
  int64_t block;
};
std::vector<Start> starts;  // of this kernel's blocks so far, in order

const Start& start_before(uint32_t clock) {
  const auto later = [](uint32_t value, const Start& start) { return value < start.clock; };
  return *(std::upper_bound(starts.begin(), starts.end(), clock, later) - 1);
}

}  // namespace

void Published::join(const Published& other) {
  if (other.empty()) return;
  block_start = other.block_start;
  everyone = std::max(everyone, other.everyone);
  for (const auto& [thread, clock] : other.threads) {
    uint32_t& mine = threads[thread];
    mine = std::max(mine, clock);
  }
}

bool Published::covers(const Record& record) const {
  if (record.clock < block_start || start_before(record.clock).clock != block_start) return false;
  if (record.clock < everyone) return true;
  const auto found = threads.find(record.thread);
  return found != threads.end() && record.clock < found->second;
}

Clocks joined(const Clocks& a, const Clocks& b) {
  static Clocks last_a, last_b, last;  // threads at one barrier ask for the same
  if (b == nullptr || a == b) return a;
  if (a == nullptr) return b;
  if (a == last_a && b == last_b) return last;
  auto both = std::make_shared<std::vector<uint32_t>>(*a);
  raise_all(*both, b);
  last_a = a, last_b = b;
  return last = both;
}

void begin_kernel_order() {
  kernel_started = tick();
  published.clear();
  starts.assign(1, {kernel_started, -1});
}

void begin_block_order(int64_t block) {
  block_started = barrier_passed = tick();
  starts.push_back({block_started, block});
  block_fenced = {};
  block_acquired.clear();
  for (int id = 0; id < block_threads; ++id) {
    Knowledge& knowledge = thread_of(id).knowledge;
    knowledge.clock = block_started;
    knowledge.heard = knowledge.published = nullptr;
    knowledge.fenced = {};
    knowledge.observed.clear();
    knowledge.acquired.clear();
  }
}

void order_by_barrier() {
  barrier_passed = tick();
  Clocks published;
  for (int id = 0; id < block_threads; ++id) published = joined(published, thread_of(id).knowledge.published);
  for (int id = 0; id < block_threads; ++id) {
    Knowledge& knowledge = thread_of(id).knowledge;
    knowledge.clock = barrier_passed;
    knowledge.heard = nullptr;  // of what came before the barrier everybody knows everything
    knowledge.published = published;
    if (!knowledge.fenced.empty()) block_fenced.join(knowledge.fenced);
    if (!knowledge.acquired.empty()) acquire_all(block_acquired, knowledge.acquired);
    knowledge.fenced = {};
    knowledge.acquired.clear();
  }
}

void order_by_meet(int warp, unsigned lanes) {
  const uint32_t met = tick();
  Knowledge all;
  for (unsigned left = lanes; left != 0; left &= left - 1) {
    const Knowledge& knowledge = thread_of(warp * 32 + __builtin_ctz(left)).knowledge;
    for (int lane = 0; lane < 32; ++lane) all.lanes[lane] = std::max(all.lanes[lane], knowledge.lanes[lane]);
    all.heard = joined(all.heard, knowledge.heard);
    all.published = joined(all.published, knowledge.published);
    all.fenced.join(knowledge.fenced);
    acquire_all(all.acquired, knowledge.acquired);
  }
  for (unsigned left = lanes; left != 0; left &= left - 1) all.lanes[__builtin_ctz(left)] = met;
  all.clock = met;
  for (unsigned left = lanes; left != 0; left &= left - 1) {
    Knowledge& knowledge = thread_of(warp * 32 + __builtin_ctz(left)).knowledge;
    all.observed = std::move(knowledge.observed);  // a fence of this thread itself has to follow
    knowledge = all;
  }
}

void order_by_fence() {
  Knowledge& knowledge = current->knowledge;
  Published fenced;
  fenced.block_start = block_started;
  fenced.everyone = barrier_passed;
  for (int lane = 0; lane < 32; ++lane) {
    if (knowledge.lanes[lane] > barrier_passed)
      fenced.threads[current->id / 32 * 32 + lane] = knowledge.lanes[lane];
  }
  for (size_t id = 0; knowledge.heard != nullptr && id < knowledge.heard->size(); ++id) {
    uint32_t& clock = fenced.threads[static_cast<int>(id)];
    clock = std::max(clock, (*knowledge.heard)[id]);
  }
  knowledge.clock = tick();
  fenced.threads[current->id] = knowledge.clock;
  knowledge.fenced.join(fenced);
  acquire_all(knowledge.acquired, knowledge.observed);
  knowledge.observed.clear();
}

// An atomic sees what those before it at this address have published; what it sees counts once a fence
// follows it. It publishes what its thread knows to be fenced.
void order_by_atomic(const void* address) {
  Knowledge& knowledge = current->knowledge;
  std::vector<Published>& list = published[address];
  if (!list.empty()) acquire(knowledge.observed, {address, list.size()});
  Published mine = block_fenced;
  mine.join(knowledge.fenced);
  if (mine.empty()) return;
  if (!list.empty() && list.back().block_start == block_started) {
    list.back().join(mine);
  } else {
    list.push_back(mine);
  }
}

// What the copy engine sees: all that the thread itself knows to have been.
void order_by_publishing() {
  Knowledge& knowledge = current->knowledge;
  auto seen = std::make_shared<std::vector<uint32_t>>(static_cast<size_t>(block_threads), barrier_passed);
  raise_all(*seen, knowledge.heard);
  knowledge.clock = tick();
  raise_own(*seen, knowledge.clock);
  knowledge.published = seen;
}

void order_by_release(Token& token) {
  Knowledge& knowledge = current->knowledge;
  knowledge.clock = tick();
  raise_own(token.known, knowledge.clock);
  token.heard = joined(token.heard, knowledge.heard);
  token.published = joined(token.published, knowledge.published);
  token.fenced.join(knowledge.fenced);
  acquire_all(token.acquired, knowledge.acquired);
}

void order_by_acquire(const Token& token) {
  Knowledge& knowledge = current->knowledge;
  knowledge.heard = joined(knowledge.heard, token.heard);
  knowledge.published = joined(knowledge.published, token.published);
  knowledge.fenced.join(token.fenced);
  acquire_all(knowledge.acquired, token.acquired);
}

void settle(Token& token) {
  token.heard = joined(token.heard, std::make_shared<std::vector<uint32_t>>(token.known));
}

uint32_t order_by_landing(Token& token, int slot) {
  const uint32_t moment = tick();
  raise(token.known, static_cast<size_t>(slot), moment + 1);
  tick();
  return moment;
}

bool engine_sees(const Record& record) {
  return record.engine || record.clock < block_started || covers(current->knowledge.published, record);
}

bool is_of_kernel(const Record& record) { return record.clock >= kernel_started; }

bool precedes_now(const Record& record) {
  const Thread& thread = *current;
  if (record.clock >= block_started) {
    if (record.clock < barrier_passed || covers(thread.knowledge.heard, record)) return true;
    if (record.engine) return false;
    if (record.thread == thread.id) return true;
    const bool same_warp = record.thread / 32 == thread.id / 32;
    if (same_warp && record.clock < thread.knowledge.lanes[record.thread % 32]) return true;
    return is_published(record, thread.knowledge.acquired) || is_published(record, block_acquired);
  }
  if (record.clock < kernel_started) return true;
  return is_published(record, thread.knowledge.acquired) || is_published(record, block_acquired);
}

int64_t block_at(uint32_t clock) { return clock < kernel_started ? -1 : start_before(clock).block; }

uint32_t block_start() { return block_started; }

}  // namespace emulator

extern "C" void emulator_fence(EmulatorFence) { emulator::order_by_fence(); }

extern "C" unsigned long long emulator_clock() { return emulator::now; }
