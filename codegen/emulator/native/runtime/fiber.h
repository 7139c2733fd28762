// SPDX-License-Identifier: Apache-2.0
// A thread of a block is a fiber: a stack of its own on the one OS thread, switched to by hand.
#pragma once

#include <cstddef>

namespace emulator {

struct Fiber {
  void* context = nullptr;      // where it goes on: a stack pointer, or a ucontext
  const void* stack = nullptr;  // its lowest address
  size_t stack_bytes = 0;
  void* shadow_stack = nullptr;  // AddressSanitizer's, while another fiber runs
};

// A fiber on fresh memory whose lowest page is not accessible. It starts at `body`, which never returns.
// `index` staggers the stacks: at equal distances they would share the same few cache lines.
Fiber make_fiber(void (*body)(), size_t stack_bytes, int index);

void switch_fiber(Fiber& from, Fiber& to);

// To be called first by a fiber's body.
void enter_fiber();

}  // namespace emulator
