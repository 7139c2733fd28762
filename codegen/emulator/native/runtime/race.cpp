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
            access.under_way,         false};
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
    found.other = actor_of(old);
    report(found);
  }

  void report_unpublished(const Record& old) const {
    Finding found = finding("unpublished", "");
    found.other = actor_of(old);
    report(found);
  }

  static Actor actor_of(const Record& old) {
    return {block_at(old.clock), old.engine ? COPY_ENGINE : old.thread, old.pc + code_base(), {}};
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
    if (old.under_way && is_of_kernel(old)) {
      report_race("the other's background copy has not been waited for", old);
    } else if (conflicts(old)) {
      report_race(access.writes ? "two writes" : "a read of another thread's write", old);
    } else if (access.engine && !engine_sees(old)) {
      report_unpublished(old);
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

void begin_reading(Region& region, size_t offset, size_t bytes, bool may_be_unwritten, uintptr_t pc,
                   std::vector<Record>& seen) {
  const Check check = {region, offset, bytes, {true, false, false, false, true}, pc};
  size_t count = 0;
  Cell* cell = region.shadow.cells(offset, bytes, region.bytes, &count);
  for (size_t i = 0; i < count; ++i) {
    if (check.is_there(cell[i].write) || !may_be_unwritten) check.check_write(cell[i]);
    seen.push_back(cell[i].write);
  }
}

void end_reading(Region& region, size_t offset, size_t bytes, uintptr_t pc, const std::vector<Record>& seen) {
  const Check check = {region, offset, bytes, {true, false, false, false, true}, pc};
  size_t count = 0;
  Cell* cell = region.shadow.cells(offset, bytes, region.bytes, &count);
  for (size_t i = 0; i < count; ++i) {
    const Record &now = cell[i].write, &then = seen[i * seen.size() / count];
    if (now.clock != then.clock || now.pc != then.pc || now.thread != then.thread) {
      check.report_race("a write over what is still read in the background", now);
    }
    check.remember_read(cell[i]);
  }
}

void record_landing(Region& region, size_t offset, size_t bytes, uintptr_t pc, uint32_t moment, int slot) {
  const auto relative = static_cast<uint32_t>(pc - code_base());
  const Record record = {moment, relative, static_cast<uint16_t>(slot), false, false, true};
  size_t count = 0;
  Cell* cell = region.shadow.cells(offset, bytes, region.bytes, &count);
  for (size_t i = 0; i < count; ++i) cell[i] = {record, {}, {}, {}};
}

void record_write(Region& region, size_t offset, size_t bytes, uintptr_t pc) {
  const Record record = Check{region, offset, bytes, {false, true, false, false}, pc}.record();
  size_t count = 0;
  Cell* cell = region.shadow.cells(offset, bytes, region.bytes, &count);
  for (size_t i = 0; i < count; ++i) cell[i] = {record, {}, {}, {}};
}

}  // namespace emulator
