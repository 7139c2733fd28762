# SPDX-License-Identifier: Apache-2.0
"""The emulator's own test of what goes on in the background: faults planted in kernels that use the copy
engine, its barriers, named barriers and products of four warps."""

from __future__ import annotations

import pytest
from coldforge.codegen.compile import Cache
from coldforge.codegen.emulator import BUILDS
from emulator_kernels import shared_cache
from engine_kernels import ENGINE_BASES
from planted_faults import Fault, assert_clean, assert_found, found_in

pytestmark = pytest.mark.build

ALL = ("plain", "race")  # what the runtime itself sees, all builds see alike
RACE = ("race",)
NO_WAIT = "    mbarrier_wait(&full[stage], use & 1);\n"
READS = (
    "    for (int k = 0; k < 4; ++k) v[k] = stages[stage][k * 64 + c] + stages[stage][(k * 64 + c) ^ 1];\n"
)
ARRIVES = "    mbarrier_arrive(&empty[stage]);\n"

FAULTS = {
    "missing wait for a bulk load": Fault("ring", NO_WAIT, "", found_in(RACE, "race"), "bulk_load("),
    "wait for the parity before": Fault(
        "ring",
        "&full[stage], use & 1",
        "&full[stage], (use & 1) ^ 1",
        found_in(RACE, "race", "uninitialised"),
    ),
    "some threads do not wait for a bulk load": Fault(
        "ring", NO_WAIT, "    if (c < 32) mbarrier_wait(&full[stage], use & 1);\n", found_in(RACE, "race")
    ),
    "a stage filled before it is empty": Fault(
        "ring",
        "      mbarrier_wait(&empty[stage], (use & 1) ^ 1);\n",
        "",
        found_in(RACE, "race", "undefined"),
    ),
    "a stage said to be empty too early": Fault(
        "ring",
        READS + ARRIVES,
        ARRIVES + READS,
        found_in(RACE, "race", "undefined"),
    ),
    "a stage that is never said to be empty": Fault(
        "ring", ARRIVES, "", found_in(ALL, "deadlock"), "mbarrier_wait(&empty"
    ),
    "fewer bytes announced than come": Fault(
        "ring",
        "mbarrier_expect(&full[stage], T * 4)",
        "mbarrier_expect(&full[stage], T * 4 - 16)",
        found_in(ALL, "undefined"),
    ),
    "more bytes announced than come": Fault(
        "ring",
        "mbarrier_expect(&full[stage], T * 4)",
        "mbarrier_expect(&full[stage], T * 4 + 16)",
        found_in(ALL, "deadlock"),
        "mbarrier_wait(&full",
    ),
    "bytes that nobody announces": Fault(
        "ring",
        "mbarrier_expect(&full[stage], T * 4)",
        "mbarrier_arrive(&full[stage])",
        found_in(ALL, "undefined"),
    ),
    "a barrier for fewer arrivals": Fault(
        "ring",
        "mbarrier_init(&empty[i], 64)",
        "mbarrier_init(&empty[i], 32)",
        found_in(RACE, "race", "undefined", "deadlock"),
    ),
    "a barrier for more arrivals": Fault(
        "ring", "mbarrier_init(&empty[i], 64)", "mbarrier_init(&empty[i], 65)", found_in(ALL, "deadlock")
    ),
    "a barrier that nobody begins": Fault(
        "ring",
        "mbarrier_init(&empty[i], 64)",
        "mbarrier_init(&empty[0] + 2 * i, 64)",
        found_in(ALL, "uninitialised", "out_of_bounds"),
    ),
    "missing fence behind a barrier's beginning": Fault(
        "ring", "    fence_barrier_init();\n", "", found_in(ALL, "unpublished"), "bulk_load("
    ),
    "missing barrier behind a barrier's beginning": Fault(
        "ring",
        "  }\n  __syncthreads();\n  if (t < 32)",
        "  }\n  if (t < 32)",
        found_in(RACE, "race", "uninitialised"),
    ),
    "results that are not published": Fault(
        "ring", "    publish_shared();\n", "", found_in(RACE, "unpublished"), "bulk_store("
    ),
    "results published too early": Fault(
        "ring",
        ARRIVES,
        ARRIVES + "    publish_shared();\n    if (c == 63) out[3] = v[3];\n",
        found_in(RACE, "race", "unpublished"),
    ),
    "results sent before all are there": Fault(
        "ring", "    named_barrier_sync(1, 64);\n", "", found_in(RACE, "race", "uninitialised"), "bulk_store("
    ),
    "results written over while they are sent": Fault(
        "ring", "    named_barrier_sync(2, 64);\n", "", found_in(RACE, "race"), "out[k * 64 + c]"
    ),
    "missing wait for a bulk store": Fault(
        "ring", "      bulk_wait_read();\n", "", found_in(RACE, "race"), wrong=("plain",)
    ),
    "wait that leaves one bulk store too many": Fault(
        "ring", "bulk_wait_read()", "bulk_wait_read<1>()", found_in(RACE, "race"), wrong=("plain",)
    ),
    "a bulk store of no group": Fault(
        "ring", "      bulk_commit();\n", "", found_in(RACE, "race"), wrong=("plain",)
    ),
    "a bulk store's place is read at once": Fault(
        "ring",
        "      bulk_wait_read();\n",
        "      bulk_wait_read();\n      out[0] = args.y[tile * T];\n",
        found_in(RACE, "race"),
        "args.y[tile * T]",
    ),
    "two bulk stores to one place": Fault(
        "ring", "bulk_store(args.y + tile * T", "bulk_store(args.y + tile / 2 * T", found_in(RACE, "race")
    ),
    "a bulk load past its source": Fault(
        "ring", "args.x + tile * T, T * 4", "args.x + tile * T + 8, T * 4", found_in(ALL, "out_of_bounds")
    ),
    "a bulk load past its place": Fault(
        "ring",
        "bulk_load(stages[stage],",
        "bulk_load(stages[stage] + 4,",
        found_in(ALL, "out_of_bounds"),
        "bulk_load(",
    ),
    "a misaligned bulk load": Fault(
        "ring",
        "bulk_load(stages[stage], args.x + tile * T",
        "bulk_load(stages[stage], args.x + (tile + 1) / 2 * (T - 1)",
        found_in(ALL, "misaligned"),
        "bulk_load(",
    ),
    "a bulk load of odd bytes": Fault(
        "ring", "args.x + tile * T, T * 4, &", "args.x + tile * T, T * 4 - 4, &", found_in(ALL, "misaligned")
    ),
    "a bulk load that nobody waits for": Fault(
        "ring",
        "    return;\n",
        "    if (t == 0) {\n      mbarrier_wait(&empty[1], 1);\n      mbarrier_expect(&full[1], 16);\n"
        "      bulk_load(stages[1], args.x, 16, &full[1]);\n    }\n    return;\n",
        found_in(ALL, "race", "undefined"),
        "args.x, 16",
    ),
    "a barrier of other threads": Fault(
        "ring",
        "named_barrier_sync(1, 64)",
        "named_barrier_sync(1, 96)",
        found_in(ALL, "deadlock"),
        "named_barrier_sync(1",
    ),
    "one barrier of two numbers of threads": Fault(
        "ring",
        "named_barrier_sync(1, 64)",
        "named_barrier_sync(1, c < 32 ? 64 : 32)",
        found_in(ALL, "divergent_barrier", "deadlock"),
        "named_barrier_sync(1",
    ),
    "a barrier that a part of a warp reaches": Fault(
        "ring",
        "named_barrier_sync(1, 64)",
        "if (c < 48) named_barrier_sync(1, 64)",
        found_in(ALL, "deadlock", "divergent_warp"),
    ),
    "a barrier of part of a warp": Fault(
        "handover",
        "named_barrier_sync(4, 64)",
        "named_barrier_sync(4, 48)",
        found_in(ALL, "undefined"),
        "named_barrier_sync(4",
    ),
    "arrival in place of a wait": Fault(
        "handover",
        "named_barrier_sync(4, 64)",
        "named_barrier_arrive(4, 64)",
        found_in(RACE, "race", "uninitialised"),
        "back[lane]",
    ),
    "what is written behind the arrival": Fault(
        "handover",
        "    there[lane] = args.x[t];\n    named_barrier_arrive(3, 64);\n",
        "    named_barrier_arrive(3, 64);\n    there[lane] = args.x[t];\n",
        found_in(RACE, "race", "uninitialised"),
        "there[lane]",
    ),
    "a barrier that is another": Fault(
        "handover",
        "named_barrier_sync(3, 64)",
        "named_barrier_sync(5, 64)",
        found_in(ALL, "deadlock"),
        "named_barrier_sync(5",
    ),
    "factors that are not published": Fault(
        "product", "  publish_shared();\n", "", found_in(RACE, "unpublished"), "multiply_warpgroup<"
    ),
    "factors that are not there yet": Fault(
        "product", "  __syncthreads();\n", "", found_in(RACE, "race", "unpublished"), "multiply_warpgroup<"
    ),
    "sums that are not waited for": Fault("product", "  warpgroup_wait<0>();\n", "", {}, wrong=ALL),
    "sums of a group that is not waited for": Fault(
        "product", "warpgroup_wait<0>", "warpgroup_wait<1>", {}, wrong=ALL
    ),
    "a product of no group": Fault("product", "  warpgroup_commit();\n", "", {}, wrong=ALL),
    "a product without a beginning": Fault(
        "product", "  warpgroup_begin();\n", "", found_in(ALL, "undefined"), "multiply_warpgroup<"
    ),
    "a factor written over while it is read": Fault(
        "product",
        "  warpgroup_commit();\n",
        "  warpgroup_commit();\n  factors[0][t % 32][0] = 0;\n",
        found_in(RACE, "race"),
        "factors[0][t % 32][0] = 0",
    ),
    "a factor past its array": Fault(
        "product",
        "at(0, 32 * 16)",
        "at(16, 32 * 16)",
        found_in(ALL, "out_of_bounds"),
        "multiply_warpgroup<",
    ),
    "a misaligned factor": Fault(
        "product",
        "at(0, 32 * 16)",
        "at(8, 32 * 16)",
        found_in(ALL, "misaligned"),
        "multiply_warpgroup<",
    ),
    "one warp of four takes no part": Fault(
        "product",
        "  multiply_warpgroup<false>(sums",
        "  if (t >= 32) multiply_warpgroup<false>(sums",
        found_in(ALL, "divergent_warp"),
    ),
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return shared_cache(tmp_path_factory)


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("base", ENGINE_BASES)
def test_nothing_is_found_in_a_good_kernel(base: str, build: str, cache: Cache) -> None:
    assert_clean(base, ENGINE_BASES[base], build, cache)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_in_every_order(name: str, cache: Cache) -> None:
    assert_found(FAULTS[name], ENGINE_BASES[FAULTS[name].base], cache)
