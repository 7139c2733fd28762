// SPDX-License-Identifier: Apache-2.0
#include "fiber.h"

#include <sys/mman.h>

#include "report.h"
#include "switch.h"

#if defined(EMULATOR_ASAN)
#include <sanitizer/common_interface_defs.h>
#endif

#if !defined(EMULATOR_UCONTEXT) && defined(__x86_64__)
asm(R"(
  .text
  .globl emulator_switch_context
  .type emulator_switch_context, @function
emulator_switch_context:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size emulator_switch_context, .-emulator_switch_context
)");
#elif !defined(EMULATOR_UCONTEXT) && defined(__aarch64__)
asm(R"(
  .text
  .globl emulator_switch_context
  .type emulator_switch_context, %function
emulator_switch_context:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
  .size emulator_switch_context, .-emulator_switch_context
)");
#endif

namespace emulator {
namespace {

constexpr size_t GUARD_BYTES = 65536;  // at least a page on every machine
[[maybe_unused]] Fiber* previous = nullptr;

}  // namespace

Fiber make_fiber(void (*body)(), size_t stack_bytes, int index) {
  const size_t all = GUARD_BYTES + stack_bytes;
  void* memory =
      mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, GUARD_BYTES, PROT_NONE) != 0)
    fail("no memory for the threads' stacks");
  char* lowest = static_cast<char*>(memory) + GUARD_BYTES;
  char* top = lowest + stack_bytes - static_cast<size_t>(index % 61) * 192;
  Fiber fiber;
  fiber.context = prepare_context(lowest, top, body);
  fiber.stack = lowest;
  fiber.stack_bytes = stack_bytes;
  return fiber;
}

void switch_fiber(Fiber& from, Fiber& to) {
#if defined(EMULATOR_ASAN)
  previous = &from;
  __sanitizer_start_switch_fiber(&from.shadow_stack, to.stack, to.stack_bytes);
  switch_context(&from.context, to.context);
  const void* stack = nullptr;
  size_t bytes = 0;
  __sanitizer_finish_switch_fiber(from.shadow_stack, &stack, &bytes);
  previous->stack = stack;
  previous->stack_bytes = bytes;
#else
  switch_context(&from.context, to.context);
#endif
}

void enter_fiber() {
#if defined(EMULATOR_ASAN)
  const void* stack = nullptr;
  size_t bytes = 0;
  __sanitizer_finish_switch_fiber(nullptr, &stack, &bytes);
  previous->stack = stack;
  previous->stack_bytes = bytes;
#endif
}

}  // namespace emulator
