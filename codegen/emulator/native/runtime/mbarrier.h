// SPDX-License-Identifier: Apache-2.0
// Barriers in shared memory, and the bulk copies from global memory that they tell of. The copies land when
// somebody waits for them, and never before.
#pragma once

namespace emulator {

// The block ends, and its barriers with it: nothing may still be on its way.
void end_mbarriers();

}  // namespace emulator
