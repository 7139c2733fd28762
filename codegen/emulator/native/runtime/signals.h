// SPDX-License-Identifier: Apache-2.0
// Faults of the processor and the end of the time limit become findings.
#pragma once

namespace emulator {

void catch_signals();

// From now on a call may take this much processor time; 0 takes the limit away.
void limit_time(double seconds);

}  // namespace emulator
