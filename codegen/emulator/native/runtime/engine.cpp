// SPDX-License-Identifier: Apache-2.0
#include "engine.h"

#include <cstring>
#include <utility>

#include "access.h"
#include "block.h"
#include "memory.h"
#include "report.h"

namespace emulator {
namespace {

// A product reads more than its tile where what comes of the rest is not used.
Reading begin_background(const void* from, size_t bytes, bool may_be_unwritten, uintptr_t pc) {
  Reading reading = {static_cast<const char*>(from), bytes, pc, {}};
  check_background(from, bytes, 16, may_be_unwritten, pc, reading.seen);
  return reading;
}

void report_plainly(const char* kind, const char* detail, int thread, uintptr_t pc) {
  Finding finding = {kind, detail};
  finding.actor = {current_block, thread, pc, {nullptr, 0, 0}};
  report(finding);
}

}  // namespace

void StoreQueue::commit() { groups_.push_back(std::exchange(open_, {})); }

void StoreQueue::wait(size_t pending) {
  while (groups_.size() > pending) {
    for (const Store& store : groups_.front()) {
      const Reading& reading = store.reading;
      std::memcpy(store.to, reading.from, reading.bytes);
      finish_background(reading.from, reading.bytes, reading.pc, reading.seen);
    }
    groups_.pop_front();
  }
}

void StoreQueue::end() {
  if (open_.empty() && groups_.empty()) return;
  for (auto& group : groups_) open_.insert(open_.end(), group.begin(), group.end());
  for (const Store& store : open_) {
    if (store.reading.bytes == 0) continue;
    report_plainly("race", "a thread ends before the bulk copy that it began has read shared memory",
                   current->id, store.reading.pc);
  }
  open_.clear();
  groups_.clear();
}

// What was begun earlier on the same sums goes on from there.
float* ProductQueue::sums(float* of_kernel, size_t count) {
  for (Sums& each : sums_) {
    if (each.of_kernel != of_kernel) continue;
    each.group = closed_;
    return each.values.data();
  }
  sums_.push_back({closed_, of_kernel, std::vector<float>(of_kernel, of_kernel + count)});
  std::memset(static_cast<void*>(of_kernel), POISON, count * sizeof(float));
  return sums_.back().values.data();
}

void ProductQueue::wait(size_t pending) {
  begun = false;
  const auto finished = [&](uint32_t group) { return group < closed_ && closed_ - group > pending; };
  size_t left = 0;
  for (Sums& each : sums_) {
    if (finished(each.group)) {
      std::memcpy(static_cast<void*>(each.of_kernel), each.values.data(), each.values.size() * sizeof(float));
    } else {
      sums_[left++] = std::move(each);
    }
  }
  sums_.resize(left);
  left = 0;
  for (Operand& each : readings_) {
    if (finished(each.group)) {
      const Reading& reading = each.reading;
      finish_background(reading.from, reading.bytes, reading.pc, reading.seen);
    } else {
      readings_[left++] = std::move(each);
    }
  }
  readings_.resize(left);
}

void ProductQueue::clear() { *this = {}; }

void check_products() {
  for (int id = 0; id < block_threads; ++id) {
    const Thread &thread = threads[static_cast<size_t>(id)],
                 &first = threads[static_cast<size_t>(id / 128 * 128)];
    if (thread.products.count == first.products.count) continue;
    report_plainly("divergent_warp", "four warps take part in a product together, and here not all did", id,
                   0);
    break;
  }
  for (int id = 0; id < block_threads; ++id) threads[static_cast<size_t>(id)].products.clear();
}

}  // namespace emulator

extern "C" void emulator_publish() { emulator::order_by_publishing(); }

extern "C" void emulator_bulk_store(void* to, const void* from, unsigned bytes) {
  using namespace emulator;
  const uintptr_t pc = EMULATOR_CALLER;
  if (bytes % 16 != 0) {
    report_plainly("misaligned", "a bulk copy of bytes that are no multiple of 16", current->id, pc);
    return;
  }
  if (bytes == 0) return;
  require_shared(from, bytes, pc);
  Reading reading = begin_background(from, bytes, false, pc);
  check_access(to, bytes, 16, {false, true, false, true}, pc);
  std::memset(to, POISON, bytes);
  current->stores.begin(static_cast<char*>(to), std::move(reading));
}

extern "C" void emulator_bulk_commit() { emulator::current->stores.commit(); }

extern "C" void emulator_bulk_wait(int pending) {
  emulator::current->stores.wait(static_cast<size_t>(pending));
}

extern "C" void emulator_products_begin() { emulator::current->products.begun = true; }
extern "C" void emulator_products_commit() { emulator::current->products.commit(); }

extern "C" void emulator_products_wait(int pending) {
  emulator::current->products.wait(static_cast<size_t>(pending));
}

extern "C" void emulator_product_operand(const void* from, unsigned bytes) {
  using namespace emulator;
  const uintptr_t pc = EMULATOR_CALLER;
  require_shared(from, bytes, pc);
  current->products.read(begin_background(from, bytes, true, pc));
}

extern "C" float* emulator_product_sums(float* sums, int count) {
  using namespace emulator;
  ProductQueue& products = current->products;
  if (!products.begun)
    report_plainly("undefined",
                   "a product whose sums may still be on their way: no warpgroup_begin before it",
                   current->id, EMULATOR_CALLER);
  ++products.count;
  return products.sums(sums, static_cast<size_t>(count));
}
