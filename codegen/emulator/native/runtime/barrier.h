// SPDX-License-Identifier: Apache-2.0
// __syncthreads and its relatives.
#pragma once

namespace emulator {

void begin_barriers(int threads);

// The current thread has ended; the others no longer wait for it.
void leave_barrier();

// Threads of the block that have not ended.
int threads_left();

}  // namespace emulator
