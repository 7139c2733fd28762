// SPDX-License-Identifier: Apache-2.0
// A block's shared memory: the dynamic part, and one region for each __shared__ declaration, as they are met.
#pragma once

#include <cstddef>

namespace emulator {

void begin_shared(size_t dynamic_bytes);
void end_shared();

// What a new block finds: nothing of the block before.
void poison_shared();

}  // namespace emulator
