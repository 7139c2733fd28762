// SPDX-License-Identifier: Apache-2.0
// Meetings of a warp's lanes: what shuffles, votes and __syncwarp are made of.
#pragma once

namespace emulator {

struct Thread;

void begin_warps();

// A thread has ended; meets no longer wait for it.
void leave_warp(Thread& thread);

}  // namespace emulator
