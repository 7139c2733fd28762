// SPDX-License-Identifier: Apache-2.0
#include "access.h"

#include "block.h"
#include "memory.h"
#include "race.h"

namespace emulator {
namespace {

struct Range {
  uintptr_t from;
  size_t bytes;
};

Range library_ranges[16], arguments;
int library_pieces = 0;

[[maybe_unused]] size_t offset_in(const Region& region, const void* pointer) {
  return static_cast<size_t>(static_cast<const char*>(pointer) - region.base);
}

bool is_in(const Range& range, uintptr_t at) { return at - range.from < range.bytes; }

Finding finding_at(const char* kind, const char* detail, const void* pointer, size_t bytes, Access access,
                   uintptr_t pc) {
  Finding finding = {kind, detail};
  if (const Region* region = memory.nearest(pointer)) {
    finding.array = region->name.c_str();
    finding.offset = static_cast<const char*>(pointer) - region->base;
    finding.array_bytes = region->bytes;
  }
  finding.bytes = static_cast<int>(bytes);
  finding.write = access.writes;
  finding.actor = here(pc);
  return finding;
}

void check_region(Region& region, const void* pointer, size_t bytes, Access access, uintptr_t pc) {
  if (!region.holds(pointer, bytes)) {
    report_and_stop(finding_at("out_of_bounds", "", pointer, bytes, access, pc));
  }
  if (region.role == Role::INPUT) {
    if (access.writes) report(finding_at("write_to_input", "", pointer, bytes, access, pc));
    return;
  }
#if defined(EMULATOR_RACE)
  check_races(region, static_cast<size_t>(static_cast<const char*>(pointer) - region.base), bytes, access,
              pc);
#endif
}

}  // namespace

void check_access(const void* pointer, size_t bytes, size_t alignment, Access access, uintptr_t pc) {
  if ((reinterpret_cast<uintptr_t>(pointer) & (alignment - 1)) != 0) {
    report_and_stop(finding_at("misaligned", "", pointer, bytes, access, pc));
  }
  Region* region = memory.find(pointer);
  if (region == nullptr) report_and_stop(finding_at("out_of_bounds", "", pointer, bytes, access, pc));
  check_region(*region, pointer, bytes, access, pc);
}

void check_instrumented(const void* pointer, size_t bytes, Access access, uintptr_t pc) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(pointer);
  if (current != nullptr &&
      at - reinterpret_cast<uintptr_t>(current->fiber.stack) < current->fiber.stack_bytes) {
    return;
  }
  if (Region* region = memory.find(pointer)) return check_region(*region, pointer, bytes, access, pc);
  if (is_in(arguments, at)) return;
  for (int i = 0; i < library_pieces; ++i) {
    if (is_in(library_ranges[i], at)) return;
  }
  report_and_stop(finding_at("out_of_bounds", "", pointer, bytes, access, pc));
}

void finish_copy(const void* pointer, size_t bytes, uintptr_t pc) {
#if defined(EMULATOR_RACE)
  Region& region = *memory.find(pointer);
  record_write(region, static_cast<size_t>(static_cast<const char*>(pointer) - region.base), bytes, pc);
#else
  (void)pointer, (void)bytes, (void)pc;
#endif
}

void land(const void* pointer, size_t bytes, uintptr_t pc, uint32_t moment, int slot) {
#if defined(EMULATOR_RACE)
  Region& region = *memory.find(pointer);
  record_landing(region, offset_in(region, pointer), bytes, pc, moment, slot);
#else
  (void)pointer, (void)bytes, (void)pc, (void)moment, (void)slot;
#endif
}

void check_background(const void* pointer, size_t bytes, size_t alignment, bool may_be_unwritten,
                      uintptr_t pc, std::vector<Record>& seen) {
  const Access access = {true, false, false, false, true};
  if ((reinterpret_cast<uintptr_t>(pointer) & (alignment - 1)) != 0) {
    report_and_stop(finding_at("misaligned", "", pointer, bytes, access, pc));
  }
  Region* region = memory.find(pointer);
  if (region == nullptr || !region->holds(pointer, bytes)) {
    report_and_stop(finding_at("out_of_bounds", "", pointer, bytes, access, pc));
  }
#if defined(EMULATOR_RACE)
  begin_reading(*region, offset_in(*region, pointer), bytes, may_be_unwritten, pc, seen);
#else
  (void)may_be_unwritten, (void)seen;
#endif
}

void finish_background(const void* pointer, size_t bytes, uintptr_t pc, const std::vector<Record>& seen) {
#if defined(EMULATOR_RACE)
  Region& region = *memory.find(pointer);
  end_reading(region, offset_in(region, pointer), bytes, pc, seen);
#else
  (void)pointer, (void)bytes, (void)pc, (void)seen;
#endif
}

void require_shared(const void* pointer, size_t bytes, uintptr_t pc) {
  const Region* region = memory.find(pointer);
  if (region != nullptr && region->role == Role::SHARED) return;
  report_and_stop(
      finding_at("out_of_bounds", "not in shared memory", pointer, bytes, {true, false, false, false}, pc));
}

void allow_library(const void* pointer, size_t bytes) {
  if (library_pieces == 16) fail("the kernel's library has too many pieces");
  library_ranges[library_pieces++] = {reinterpret_cast<uintptr_t>(pointer), bytes};
}

void allow_arguments(const void* pointer, size_t bytes) {
  arguments = {reinterpret_cast<uintptr_t>(pointer), bytes};
}

}  // namespace emulator
