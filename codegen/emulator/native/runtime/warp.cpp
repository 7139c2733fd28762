// SPDX-License-Identifier: Apache-2.0
#include "warp.h"

#include <cstring>

#include "block.h"
#include "memory.h"

namespace emulator {

struct Meet {
  int warp = 0;
  unsigned mask = 0;
  EmulatorSite site = {nullptr, 0, 0};
  bool orders = false;
  unsigned arrived = 0;
  int to_leave = 0;  // lanes that may still read the slots
  EmulatorSlots slots;
};

namespace {

struct Warp {
  unsigned live = 0;        // lanes that have not ended
  std::vector<Meet*> open;  // that wait for lanes
};

std::vector<Warp> warps;
std::vector<Meet*> unused;

Thread& lane_of(int warp, int lane) { return threads[static_cast<size_t>(warp * 32 + lane)]; }

// Wakes everybody once every live lane of the mask is there.
void finish_if_complete(Meet& meet) {
  Warp& warp = warps[static_cast<size_t>(meet.warp)];
  if ((meet.mask & warp.live & ~meet.arrived) != 0) return;
  for (size_t i = 0; i < warp.open.size(); ++i) {
    if (warp.open[i] == &meet) warp.open.erase(warp.open.begin() + static_cast<std::ptrdiff_t>(i));
  }
  meet.to_leave = __builtin_popcount(meet.arrived);
  meet.slots.present = meet.arrived;
  if (meet.orders) order_by_meet(meet.warp, meet.arrived);
  for (int lane = 0; lane < 32; ++lane) {
    if (meet.arrived >> lane & 1u) {
      lane_of(meet.warp, lane).state = State::READY;
    } else {
      std::memset(meet.slots.bytes[lane], POISON, sizeof meet.slots.bytes[lane]);
    }
  }
}

[[noreturn]] void report_divergence(const char* detail, EmulatorSite site, const Meet* meet) {
  Finding finding = {"divergent_warp", detail};
  finding.actor = here();
  finding.actor.site = site;
  if (meet != nullptr) {
    finding.other = {current_block, meet->warp * 32 + __builtin_ctz(meet->arrived), 0, meet->site};
  }
  report_and_stop(finding);
}

Meet& new_meet(int warp, EmulatorSite site, unsigned mask, bool orders) {
  Meet* meet = unused.empty() ? new Meet : unused.back();
  if (!unused.empty()) unused.pop_back();
  meet->warp = warp;
  meet->mask = mask;
  meet->site = site;
  meet->orders = orders;
  meet->arrived = 0;
  warps[static_cast<size_t>(warp)].open.push_back(meet);
  return *meet;
}

// The open meet that this lane belongs to, or a new one.
Meet& join(EmulatorSite site, unsigned mask, bool orders) {
  const int warp = current->id / 32;
  const unsigned lane = 1u << current->id % 32;
  if ((mask & lane) == 0) report_divergence("the calling lane is not in its own mask", site, nullptr);
  for (Meet* meet : warps[static_cast<size_t>(warp)].open) {
    const bool waits_for_me = (meet->mask & lane) != 0, waited_for = (meet->arrived & mask) != 0;
    if (!waits_for_me && !waited_for) continue;
    if (meet->site.id == site.id) {
      if (meet->mask != mask) report_divergence("two masks for one operation", site, meet);
      return *meet;
    }
    // Lanes may do something among themselves before they join the others; not so if each waits for the
    // other.
    if (waits_for_me && waited_for) report_divergence("two operations", site, meet);
  }
  return new_meet(warp, site, mask, orders);
}

// The thread no longer reads what its last meet brought.
void leave(Thread& thread) {
  Meet* meet = thread.meet;
  thread.meet = nullptr;
  if (meet != nullptr && --meet->to_leave == 0) unused.push_back(meet);
}

}  // namespace

void begin_warps() {
  warps.assign(static_cast<size_t>(block_threads + 31) / 32, {});
  for (int id = 0; id < block_threads; ++id) warps[static_cast<size_t>(id / 32)].live |= 1u << id % 32;
}

void leave_warp(Thread& thread) {
  leave(thread);
  Warp& warp = warps[static_cast<size_t>(thread.id / 32)];
  warp.live &= ~(1u << thread.id % 32);
  const std::vector<Meet*> open = warp.open;
  for (Meet* meet : open) finish_if_complete(*meet);
}

}  // namespace emulator

extern "C" unsigned emulator_lane() { return static_cast<unsigned>(emulator::current->id % 32); }

extern "C" const EmulatorSlots* emulator_warp_meet(EmulatorSite site, unsigned mask, const void* value,
                                                   int bytes, bool orders) {
  using namespace emulator;
  leave(*current);
  Meet& meet = join(site, mask, orders);
  const int lane = current->id % 32;
  std::memcpy(meet.slots.bytes[lane], value, static_cast<size_t>(bytes));
  meet.arrived |= 1u << lane;
  current->state = State::AT_MEET;
  current->meet = &meet;
  finish_if_complete(meet);
  wait_as(current->state, site);
  return &meet.slots;
}
