// SPDX-License-Identifier: Apache-2.0
#include "race.h"

#include "block.h"
#include "order.h"
#include "report.h"

namespace emulator {
namespace {

// One access in the middle of its check.
struct Check {
  Region& region;
  size_t offset, bytes;
  Access access;
  uintptr_t pc;

  Record record() const {
    const auto relative = static_cast<uint32_t>(pc - code_base());
    return {current->knowledge.clock, relative, static_cast<uint16_t>(current->id), access.atomic,
            access.under_way};
  }

  // Records of another block's shared memory, which had this place before, are none.
  bool is_there(const Record& old) const {
    return old.clock != 0 && (region.role != Role::SHARED || old.clock >= block_start());
  }

  Finding finding(const char* kind, const char* detail) const {
    Finding found = {kind, detail, region.name.c_str(), static_cast<int64_t>(offset), region.bytes};
    found.bytes = static_cast<int>(bytes);
    found.write = access.writes;
    found.actor = here(pc);
    return found;
  }

  void report_race(const char* detail, const Record& old) const {
    Finding found = finding("race", detail);
    found.other = {block_at(old.clock), old.thread, old.pc + code_base(), {}};
    report(found);
  }

  bool conflicts(const Record& old) const {
    return is_there(old) && !(old.atomic && access.atomic) && !precedes_now(old);
  }

  void check_write(const Cell& cell) const {
    const Record& old = cell.write;
    if (!is_there(old)) {
      const bool written = region.role != Role::SHARED && offset + bytes <= region.initialised;
      if (access.reads && !written) report(finding("uninitialised", ""));
      return;
    }
    if (old.under_way) {
      report_race("the other's background copy has not been waited for", old);
    } else if (conflicts(old)) {
      report_race(access.writes ? "two writes" : "a read of another thread's write", old);
    }
  }

  void check_reads(const Cell& cell) const {
    for (const Record* old : {&cell.last, &cell.before, &cell.elsewhere}) {
      if (!conflicts(*old)) continue;
      report_race("a write over what another thread reads", *old);
      return;
    }
  }

  void remember_read(Cell& cell) const {
    const Record mine = record();
    const bool same_block = cell.last.clock >= block_start();
    if (!same_block || cell.last.thread != mine.thread) {
      const bool same_warp = same_block && cell.last.thread / 32 == mine.thread / 32;
      if (is_there(cell.last) && !same_warp) cell.elsewhere = cell.last;
      cell.before = cell.last;
    }
    cell.last = mine;
  }

  void check(Cell& cell) const {
    check_write(cell);
    if (access.writes) {
      check_reads(cell);
      cell = {record(), {}, {}, {}};
    } else {
      remember_read(cell);
    }
  }
};

}  // namespace

void check_races(Region& region, size_t offset, size_t bytes, Access access, uintptr_t pc) {
  const Check check = {region, offset, bytes, access, pc};
  size_t count = 0;
  Cell* cell = region.shadow.cells(offset, bytes, region.bytes, &count);
  for (size_t i = 0; i < count; ++i) check.check(cell[i]);
}

void record_write(Region& region, size_t offset, size_t bytes, uintptr_t pc) {
  const Record record = Check{region, offset, bytes, {false, true, false, false}, pc}.record();
  size_t count = 0;
  Cell* cell = region.shadow.cells(offset, bytes, region.bytes, &count);
  for (size_t i = 0; i < count; ++i) cell[i] = {record, {}, {}, {}};
}

}  // namespace emulator
