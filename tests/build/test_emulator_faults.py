# SPDX-License-Identifier: Apache-2.0
"""The emulator's own test: faults planted in small kernels, each found by the builds that must find it, in
every order of threads; and nothing found in the kernels as they are."""

from __future__ import annotations

import pytest
from coldforge.codegen.compile import Cache
from coldforge.codegen.emulator import BUILDS
from emulator_kernels import BASES, shared_cache
from planted_faults import Fault, assert_clean, assert_found, found_in

pytestmark = pytest.mark.build

ALL = ("plain", "asan", "race")


FAULTS = {
    "typed index past a static array": Fault(
        "stencil",
        "rows[t / 16][t % 8];",
        "rows[t / 16 + 1][t % 8];",
        found_in(("asan",), "index_out_of_bounds"),
        "float sum",
    ),
    "inner index past its row, inside of the array": Fault(
        "stencil",
        "rows[t / 16][t % 8];",
        "rows[t / 32][t % 8 + (t == 1 ? 8 : 0)];",
        found_in(("asan",), "index_out_of_bounds"),
        "float sum",
    ),
    "pointer a little past a static array": Fault(
        "stencil",
        "from[2] + rows",
        "from[3] + rows",
        found_in(("asan", "race"), "out_of_bounds"),
        "float sum",
    ),
    "pointer far past a static array": Fault(
        "stencil",
        "from[2] + rows",
        "from[t == 5 ? 66 : 2] + rows",
        found_in(("asan", "race"), "out_of_bounds"),
        "float sum",
    ),
    "dynamic shared memory, one past its end": Fault(
        "reduction",
        "sums[t] = v;",
        "sums[t] = v; if (t == 63) sums[t + 1] = v;",
        found_in(ALL, "out_of_bounds"),
    ),
    "missing guard of a read": Fault(
        "stencil",
        "i < n ? args.x[i] : 0.0f;",
        "args.x[i];",
        found_in(("asan", "race"), "out_of_bounds"),
        "args.x[i]",
    ),
    "missing guard of a write": Fault(
        "stencil", "if (i < n) args.y[i]", "args.y[i]", found_in(ALL, "out_of_bounds")
    ),
    "read a megabyte away": Fault(
        "stencil",
        "args.x[i] : 0.0f;",
        "args.x[i + 262144] : 0.0f;",
        found_in(ALL, "out_of_bounds"),
        "args.x[i",
    ),
    "missing barrier behind a fill": Fault(
        "stencil",
        "  __syncthreads();\n  const float* from",
        "  const float* from",
        found_in(("race",), "uninitialised", "race"),
    ),
    "missing barrier behind partial sums": Fault(
        "reduction",
        "  sums[t] = v;\n  __syncthreads();",
        "  sums[t] = v;",
        found_in(("race",), "uninitialised", "race"),
    ),
    "missing barrier before a flag is read": Fault(
        "reduction",
        "  }\n  __syncthreads();\n  if (last",
        "  }\n  if (last",
        found_in(("race",), "uninitialised", "race"),
    ),
    "missing barrier behind a background copy": Fault(
        "pipeline",
        "cp_async_wait<1>();\n    __syncthreads();",
        "cp_async_wait<1>();",
        found_in(("race",), "uninitialised", "race"),
    ),
    "a buffer filled while others still read it": Fault(
        "pipeline", "    }\n    __syncthreads();\n  }", "    }\n  }", found_in(("race",), "race")
    ),
    "write of an equal value over what another reads": Fault(
        "stencil",
        "  const float sum =",
        "  tile[(t + 9) % T] = args.n < 0 ? 1.0f : tile[(t + 9) % T];\n  const float sum =",
        found_in(("race",), "race"),
        "",
    ),
    "two blocks write one element": Fault(
        "stencil",
        "args.y[i] = sum;",
        "args.y[i % 128] = sum;",
        found_in(("race",), "race"),
        "args.y[i % 128]",
    ),
    "barrier in one side of a branch": Fault(
        "stencil",
        "  __syncthreads();\n  if (i",
        "  if (t < 32) __syncthreads();\n  if (i",
        found_in(ALL, "missed_barrier"),
        "if (t < 32)",
    ),
    "two barriers in two sides of a branch": Fault(
        "stencil",
        "  __syncthreads();\n  if (i",
        "  if (t < 32) { __syncthreads(); } else { __syncthreads(); }\n  if (i",
        found_in(ALL, "divergent_barrier"),
        "if (t < 32)",
    ),
    "early return before a barrier": Fault(
        "stencil",
        "  tile[t + 1] =",
        "  if (i >= n) return;\n  tile[t + 1] =",
        found_in(ALL, "missed_barrier"),
    ),
    "full-mask shuffle in divergent code": Fault(
        "reduction", "if (t < 32) {\n", "if (t < 16) {\n", found_in(ALL, "deadlock"), "__shfl_xor_sync"
    ),
    "lanes at two shuffles": Fault(
        "reduction",
        "v += __shfl_xor_sync(0xffffffffu, v, apart);",
        "v += t % 2 ? __shfl_xor_sync(0xffffffffu, v, apart) : __shfl_xor_sync(0xffffffffu, v, apart);",
        found_in(ALL, "divergent_warp"),
        "__shfl_xor_sync",
    ),
    "mask without the calling lane": Fault(
        "reduction", "0xffffffffu, v", "0x0000ffffu, v", found_in(ALL, "divergent_warp"), "__shfl_xor_sync"
    ),
    "missing wait for a background copy": Fault(
        "pipeline",
        "coldforge::cp_async_wait<1>();",
        "",
        found_in(("race",), "uninitialised", "race"),
        wrong=("plain", "asan"),
    ),
    "wait that leaves one copy too many": Fault(
        "pipeline",
        "cp_async_wait<1>",
        "cp_async_wait<2>",
        found_in(("race",), "race"),
        wrong=("plain", "asan"),
    ),
    "misaligned vector": Fault(
        "stencil",
        "const float sum = from[0]",
        "const float sum = (*reinterpret_cast<const float4*>(tile + t / 2)).x",
        found_in(("asan",), "misaligned"),
        "reinterpret_cast",
    ),
    "misaligned background copy": Fault(
        "pipeline",
        "args.x + (inside ? at : 0)",
        "args.x + (inside ? at + 1 : 0)",
        found_in(ALL, "misaligned"),
        "cp_async<16>",
    ),
    "background copy past its source": Fault(
        "pipeline",
        "tile < tiles && at < args.n",
        "tile < tiles",
        found_in(ALL, "out_of_bounds"),
        "cp_async<16>",
    ),
    "missing fence before an atomic": Fault(
        "reduction", "    __threadfence();\n", "", found_in(("race",), "race"), "partial["
    ),
    "missing fence behind an atomic": Fault(
        "reduction",
        "    __threadfence();  // so that what the others wrote is seen\n",
        "",
        found_in(("race",), "race"),
        "partial[b]",
    ),
    "a store after the atomic that announces it": Fault(
        "reduction",
        "last = atomicAdd(counter, 1u) == gridDim.x - 1;",
        "last = atomicAdd(counter, 1u) == gridDim.x - 1; partial[blockIdx.x] = v;",
        found_in(("race",), "race"),
    ),
    "plain counter instead of an atomic one": Fault(
        "reduction", "atomicAdd(counter, 1u)", "(*counter)++", found_in(("race",), "race"), "(*counter)++"
    ),
    "plain read of what others update atomically": Fault(
        "reduction",
        "last = atomicAdd(counter, 1u)",
        "last = (atomicAdd(counter, 1u), *counter - 1)",
        found_in(("race",), "race"),
    ),
    "a workspace that nobody cleared": Fault(
        "reduction",
        "atomicAdd(counter, 1u)",
        "atomicAdd(counter + 1, 1u)",
        found_in(("race",), "uninitialised"),
        "counter + 1",
    ),
    "an output that is read before it is written": Fault(
        "stencil",
        "args.y[i] = sum;",
        "args.y[i] += sum;",
        found_in(("race",), "uninitialised"),
        "args.y[i]",
        wrong=("plain",),
    ),
    "write to an input": Fault(
        "stencil",
        "if (i < n) args.y[i]",
        "if (i == 7) const_cast<float*>(args.x)[0] = 0.0f;\n  if (i < n) args.y[i]",
        found_in(("race",), "write_to_input"),
        "const_cast",
    ),
    "division by zero": Fault(
        "stencil",
        "first = blockIdx.x * T,",
        "first = blockIdx.x * T / (1 - n / 150),",
        found_in(("plain", "asan"), "undefined"),
    ),
    "shift by too much": Fault(
        "stencil",
        "first = blockIdx.x * T,",
        "first = blockIdx.x * T << n,",
        found_in(("asan",), "undefined"),
        "<< n",
    ),
    "a loop without end": Fault(
        "stencil",
        "  if (t < 32) rows",
        "  while (*static_cast<const volatile float*>(args.x + 1) != 0.5f) {}\n  if (t < 32) rows",
        found_in(("plain",), "time_limit"),
        "while (",
    ),
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return shared_cache(tmp_path_factory)


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("base", BASES)
def test_nothing_is_found_in_a_good_kernel(base: str, build: str, cache: Cache) -> None:
    assert_clean(base, BASES[base], build, cache)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_in_every_order(name: str, cache: Cache) -> None:
    assert_found(FAULTS[name], BASES[FAULTS[name].base], cache)
