// SPDX-License-Identifier: Apache-2.0
// The `asan` build: what AddressSanitizer and the undefined-behaviour checks have found becomes a finding.
#if defined(EMULATOR_ASAN)

#include <sanitizer/asan_interface.h>

#include <cstring>

#include "access.h"
#include "block.h"
#include "memory.h"

extern "C" const char* __asan_default_options() {
  // Signals are ours; fibers leave no room for a fake stack.
  return "detect_leaks=0:detect_stack_use_after_return=0:handle_segv=0:handle_sigbus=0:handle_sigfpe=0:"
         "handle_abort=0:use_sigaltstack=0";
}

// AddressSanitizer calls this before it writes its own report, which nobody needs here.
extern "C" void __asan_on_error() {
  using namespace emulator;
  void* address = __asan_get_report_address();
  Finding finding = {"out_of_bounds", "", nullptr, 0, 0};
  const char* said = __asan_get_report_description();
  if (const Region* region = memory.nearest(address)) {
    finding.array = region->name.c_str();
    finding.offset = static_cast<const char*>(address) - region->base;
    finding.array_bytes = region->bytes;
  } else if (said != nullptr && std::strlen(said) < 100) {
    finding.detail = said;
  }
  finding.bytes = static_cast<int>(__asan_get_report_access_size());
  finding.write = __asan_get_report_access_type() != 0;
  finding.actor = here(reinterpret_cast<uintptr_t>(__asan_get_report_pc()) - 1);
  report_and_stop(finding);
}

namespace {

// The compiler's own location is not used: the place of the call is known too, with all that it was inlined
// into.
[[noreturn]] void undefined(const char* kind, const char* detail, uintptr_t pc,
                            const void* pointer = nullptr) {
  using namespace emulator;
  Finding finding = {kind, detail};
  const Region* region = pointer != nullptr ? memory.nearest(pointer) : nullptr;
  if (region != nullptr) {
    finding.array = region->name.c_str();
    finding.offset = static_cast<const char*>(pointer) - region->base;
    finding.array_bytes = region->bytes;
  }
  finding.actor = here(pc);
  report_and_stop(finding);
}

}  // namespace

#define EMULATOR_UNDEFINED(NAME, KIND, DETAIL) \
  extern "C" void __ubsan_handle_##NAME(const void*) { undefined(KIND, DETAIL, EMULATOR_CALLER); }

EMULATOR_UNDEFINED(add_overflow_abort, "undefined", "signed addition overflows")
EMULATOR_UNDEFINED(sub_overflow_abort, "undefined", "signed subtraction overflows")
EMULATOR_UNDEFINED(mul_overflow_abort, "undefined", "signed multiplication overflows")
EMULATOR_UNDEFINED(negate_overflow_abort, "undefined", "signed negation overflows")
EMULATOR_UNDEFINED(divrem_overflow_abort, "undefined", "division by zero, or of the smallest number by -1")
EMULATOR_UNDEFINED(shift_out_of_bounds_abort, "undefined", "shift by a negative number or by too many bits")
EMULATOR_UNDEFINED(out_of_bounds_abort, "index_out_of_bounds", "")
EMULATOR_UNDEFINED(vla_bound_not_positive_abort, "undefined", "array of no elements")
EMULATOR_UNDEFINED(float_cast_overflow_abort, "undefined", "number too large for the integer it becomes")
EMULATOR_UNDEFINED(load_invalid_value_abort, "undefined", "value that its type does not have")
EMULATOR_UNDEFINED(invalid_builtin_abort, "undefined", "count of leading or trailing zeros of 0")
EMULATOR_UNDEFINED(nonnull_arg_abort, "undefined", "null where a pointer is needed")
EMULATOR_UNDEFINED(nonnull_return_v1_abort, "undefined", "null returned where a pointer is needed")
EMULATOR_UNDEFINED(builtin_unreachable, "undefined", "unreachable code")
EMULATOR_UNDEFINED(missing_return, "undefined", "no return value")

extern "C" void __ubsan_handle_type_mismatch_v1_abort(const void*, const void* pointer) {
  undefined("misaligned", "", EMULATOR_CALLER, pointer);
}

#endif
