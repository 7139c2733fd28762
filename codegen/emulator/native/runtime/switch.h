// SPDX-License-Identifier: Apache-2.0
// The change of stacks itself: our own few instructions where we know the machine, ucontext elsewhere.
#pragma once

#if !defined(EMULATOR_UCONTEXT) && !defined(__x86_64__) && !defined(__aarch64__)
#define EMULATOR_UCONTEXT
#endif

#if defined(EMULATOR_UCONTEXT)
#include <ucontext.h>
#endif

namespace emulator {

#if defined(EMULATOR_UCONTEXT)

inline void* prepare_context(char* stack, char* top, void (*body)()) {
  auto* context = new ucontext_t;
  getcontext(context);
  context->uc_stack.ss_sp = stack;
  context->uc_stack.ss_size = static_cast<size_t>(top - stack);
  context->uc_link = nullptr;
  makecontext(context, body, 0);
  return context;
}

inline void switch_context(void** from, void* to) {
  if (*from == nullptr) *from = new ucontext_t;
  swapcontext(static_cast<ucontext_t*>(*from), static_cast<ucontext_t*>(to));
}

#else

// Saves the registers that a call preserves on the stack, keeps that stack in *from, and restores from `to`.
extern "C" void emulator_switch_context(void** from, void* to);

inline void switch_context(void** from, void* to) { emulator_switch_context(from, to); }

// Lays out a stack as if its fiber had called emulator_switch_context at the start of `body`.
inline void* prepare_context(char*, char* top, void (*body)()) {
  auto* word = reinterpret_cast<void**>(top);
#if defined(__x86_64__)
  *--word = nullptr;  // keeps the stack aligned as after a call; a backtrace ends here
  *--word = reinterpret_cast<void*>(body);
  for (int i = 0; i < 6; ++i) *--word = nullptr;  // rbp, rbx, r12 to r15
#else
  word -= 20;  // x19 to x30, d8 to d15
  for (int i = 0; i < 20; ++i) word[i] = nullptr;
  word[11] = reinterpret_cast<void*>(body);  // x30, the return address
#endif
  return word;
}

#endif

}  // namespace emulator
