// SPDX-License-Identifier: Apache-2.0
#include "warp.h"

#include <cstring>
#include <memory>

#include "block.h"
#include "memory.h"

namespace emulator {

struct Meet {
  int warp;
  unsigned mask;
  EmulatorSite site;
  bool orders;
  unsigned arrived = 0;
  int to_leave = 0;
  bool complete = false;
  EmulatorSlots slots;
};

namespace {

std::vector<std::unique_ptr<Meet>> meets;

Thread* lane_of(int warp, int lane) {
  const int id = warp * 32 + lane;
  return id < block_threads ? &threads[static_cast<size_t>(id)] : nullptr;
}

// Lanes of a warp that exist and have not ended.
unsigned live_lanes(int warp) {
  unsigned live = 0;
  for (int lane = 0; lane < 32; ++lane) {
    const Thread* thread = lane_of(warp, lane);
    if (thread != nullptr && thread->state != State::DONE) live |= 1u << lane;
  }
  return live;
}

void finish_if_complete(Meet& meet) {
  if (meet.complete || (meet.mask & live_lanes(meet.warp) & ~meet.arrived) != 0) return;
  meet.complete = true;
  meet.to_leave = __builtin_popcount(meet.arrived);
  meet.slots.present = meet.arrived;
  if (meet.orders) order_by_meet(meet.warp, meet.arrived);
  for (int lane = 0; lane < 32; ++lane) {
    if (meet.arrived >> lane & 1u) lane_of(meet.warp, lane)->state = State::READY;
  }
}

[[noreturn]] void report_divergence(const char* detail, EmulatorSite site, const Meet& meet) {
  Finding finding = {"divergent_warp", detail};
  finding.actor = here();
  finding.actor.site = site;
  const int lane = __builtin_ctz(meet.arrived);
  finding.other = {current_block, meet.warp * 32 + lane, 0, meet.site};
  report_and_stop(finding);
}

// The open meet that this lane belongs to, or a new one.
Meet& join(EmulatorSite site, unsigned mask, bool orders) {
  const int warp = current->id / 32;
  const unsigned lane = 1u << current->id % 32;
  if ((mask & lane) == 0) {
    Finding finding = {"divergent_warp", "the calling lane is not in its own mask"};
    finding.actor = here();
    finding.actor.site = site;
    report_and_stop(finding);
  }
  for (auto& meet : meets) {
    if (meet->complete || meet->warp != warp || ((meet->mask & lane) == 0 && (meet->arrived & mask) == 0))
      continue;
    if (meet->site.id != site.id) report_divergence("lanes of one mask are at two operations", site, *meet);
    if (meet->mask != mask) report_divergence("lanes of one operation name two masks", site, *meet);
    return *meet;
  }
  meets.push_back(std::make_unique<Meet>());
  Meet& meet = *meets.back();
  meet.warp = warp;
  meet.mask = mask;
  meet.site = site;
  meet.orders = orders;
  std::memset(meet.slots.bytes, POISON, sizeof meet.slots.bytes);
  return meet;
}

void leave(const Meet& meet) {
  for (auto& each : meets) {
    if (each.get() != &meet || --each->to_leave > 0) continue;
    each.swap(meets.back());
    meets.pop_back();
    return;
  }
}

}  // namespace

void begin_warps() { meets.clear(); }

void leave_warp(const Thread& thread) {
  for (auto& meet : meets) {
    if (meet->warp == thread.id / 32) finish_if_complete(*meet);
  }
}

}  // namespace emulator

extern "C" unsigned emulator_lane() { return static_cast<unsigned>(emulator::current->id % 32); }

extern "C" void emulator_warp_meet(EmulatorSite site, unsigned mask, const void* value, int bytes,
                                   bool orders, EmulatorSlots* result) {
  using namespace emulator;
  Meet& meet = join(site, mask, orders);
  const int lane = current->id % 32;
  if (bytes > 0) std::memcpy(meet.slots.bytes[lane], value, static_cast<size_t>(bytes));
  meet.arrived |= 1u << lane;
  current->state = State::AT_MEET;
  finish_if_complete(meet);
  wait_as(current->state, site);
  *result = meet.slots;
  leave(meet);
}
