// SPDX-License-Identifier: Apache-2.0
// The twin of each wrapper that templates/include defines under __CUDACC__ only. A test compares the names.
#pragma once

namespace coldforge {

inline unsigned int shared_address(const void* pointer) { return emulator_shared_address(pointer); }

template <int BYTES>
inline void cp_async(void* to, const void* from, bool valid) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async copies 4, 8 or 16 bytes");
  emulator_copy_async(to, from, BYTES, valid ? BYTES : 0);
}

inline void cp_async_commit() { emulator_copy_commit(); }

template <int PENDING>
inline void cp_async_wait() {
  emulator_copy_wait(PENDING);
}

}  // namespace coldforge
