// SPDX-License-Identifier: Apache-2.0
// Included in front of each kernel's text: CUDA C++ for g++.
#pragma once

// Each of these uses those before it.
// clang-format off
#include "language.h"
#include "vectors.h"
#include "math.h"
#include "intrinsics.h"
#include "cooperation.h"
#include "atomics.h"
#include "twins.h"
#include "entry.h"
// clang-format on
