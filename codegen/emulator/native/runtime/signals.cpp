// SPDX-License-Identifier: Apache-2.0
#include "signals.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <ucontext.h>

#include "block.h"
#include "memory.h"

namespace emulator {
namespace {

constexpr size_t HANDLER_STACK_BYTES = 256 * 1024;

uintptr_t program_counter(const void* context) {
  const auto* all = static_cast<const ucontext_t*>(context);
#if defined(__x86_64__)
  return static_cast<uintptr_t>(all->uc_mcontext.gregs[REG_RIP]);
#elif defined(__aarch64__)
  return static_cast<uintptr_t>(all->uc_mcontext.pc);
#else
  return 0;
#endif
}

bool is_in_stack_guard(const char* address) {
  const char* stack = current != nullptr ? static_cast<const char*>(current->fiber.stack) : nullptr;
  return stack != nullptr && address < stack && stack - address < 65536;
}

void on_signal(int number, siginfo_t* info, void* context) {
  Finding finding = {"crash", "no array is near this address"};
  finding.actor = here(program_counter(context));
  if (number == SIGPROF) {
    finding.kind = "time_limit";
    finding.detail = "where it was then";
  } else if (number == SIGFPE) {
    finding.kind = "undefined";
    finding.detail = "integer division by zero";
  } else if (number == SIGILL) {
    finding.detail = "a trap";
  } else if (is_in_stack_guard(static_cast<const char*>(info->si_addr))) {
    finding.detail = "a thread's stack is too small for it";
  } else if (const Region* region = memory.nearest(info->si_addr)) {
    finding.kind = "out_of_bounds";
    finding.detail = "";
    finding.array = region->name.c_str();
    finding.offset = static_cast<const char*>(info->si_addr) - region->base;
    finding.array_bytes = region->bytes;
  }
  report_and_stop(finding);
}

}  // namespace

void catch_signals() {
  stack_t stack = {};
  stack.ss_sp =
      mmap(nullptr, HANDLER_STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  stack.ss_size = HANDLER_STACK_BYTES;
  if (stack.ss_sp == MAP_FAILED || sigaltstack(&stack, nullptr) != 0) fail("no stack for signals");
  struct sigaction action = {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigfillset(&action.sa_mask);
  for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGPROF}) sigaction(number, &action, nullptr);
}

void limit_time(double seconds) {
  itimerval timer = {};
  timer.it_value.tv_sec = static_cast<time_t>(seconds);
  timer.it_value.tv_usec =
      static_cast<suseconds_t>((seconds - static_cast<double>(timer.it_value.tv_sec)) * 1e6);
  setitimer(ITIMER_PROF, &timer, nullptr);
}

}  // namespace emulator
