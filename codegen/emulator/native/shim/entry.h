// SPDX-License-Identifier: Apache-2.0
// From a kernel function to what the runtime can call. Used in lines that follow the kernel's text.
#pragma once

namespace coldforge_emulator {

template <class Arguments>
constexpr unsigned long bytes_of(void (*)(Arguments)) {
  return sizeof(Arguments);
}

template <class Arguments>
inline void call(void (*kernel)(Arguments), const void* arguments) {
  kernel(*static_cast<const Arguments*>(arguments));
}

}  // namespace coldforge_emulator

#define COLDFORGE_EMULATOR_ENTRY(KERNEL)                                                      \
  extern "C" __attribute__((visibility("default"))) EmulatorEntry emulator_entry_##KERNEL() { \
    return {[](const void* arguments) { coldforge_emulator::call(KERNEL, arguments); },       \
            coldforge_emulator::bytes_of(KERNEL)};                                            \
  }
