// SPDX-License-Identifier: Apache-2.0
// Barriers of some of a block's warps, by number.
#pragma once

namespace emulator {

void begin_named_barriers();

}  // namespace emulator
