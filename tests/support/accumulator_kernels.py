# SPDX-License-Identifier: Apache-2.0
"""The accumulators of the CUDA templates by themselves: two small kernels that sum up series (see
`accumulator_series`) in every way that there is, executed in the emulator, and what is wrong with what comes
out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy
from accumulator_series import FEW_ULPS, LANES, STEPS, TREE, Series, products, sums, ulps
from coldforge.codegen.compile import Cache
from coldforge.codegen.emulator import Array, Call, Finding, emulate_calls
from coldforge.codegen.errors import CompileError
from coldforge.codegen.space import Launch
from coldforge.tuner.check.run import BUILDS, Fault
from emulator_kernels import source

# A block of a warp for each series, whose lane t adds up column t.
_WARPS = """
extern "C" __global__ void __launch_bounds__(32) coldforge_kernel(const __grid_constant__ Args args) {
  const int lane = threadIdx.x;
  const long long first = blockIdx.x * args.steps * 32 + lane;
  const int slot = blockIdx.x * 32 + lane;
"""
# An accumulator is used before, with sum and error far from 0: `start` has to forget both.
_PRODUCTS = (
    """
#include "coldforge/accumulator.cuh"
struct Args { const float *terms, *factors, *starts; float *fp32, *kahan, *fp64; long long steps; };
template <class A>
__device__ float total(const Args& args, long long first) {
  A sum;
  sum.start(7e8f);
  for (int i = 0; i < 9; ++i) sum.add_product(3.3f, 3.3f);
  sum.start(args.starts[blockIdx.x]);
  for (long long i = 0; i < args.steps; ++i) {
    sum.add_product(args.terms[first + i * 32], args.factors[first + i * 32]);
    if (i % 1000 == 17) sum.result();
  }
  return sum.result();
}
"""
    + _WARPS
    + """
  args.fp32[slot] = total<coldforge::AccumulatorFp32>(args, first);
  args.kahan[slot] = total<coldforge::AccumulatorKahan>(args, first);
  args.fp64[slot] = total<coldforge::AccumulatorFp64>(args, first);
}
"""
)
_SUMS = (
    f"constexpr int TREE = {TREE};"
    """
#include "coldforge/summation.cuh"
struct Args {
  const float* terms;
  float *plain, *fp32, *kahan, *plain_all, *fp32_all, *kahan_all, *tree;
  double *fp64, *fp64_all;
  long long steps;
};
struct Plain {
  using Result = float;
  float sum = 0.0f;
  __device__ void add(float value) { sum += value; }
  __device__ float result() const { return sum; }
};
template <class A>
__device__ void total(const Args& args, long long first, typename A::Result* own, typename A::Result* all) {
  A sum;
  for (long long i = 0; i < args.steps; ++i) sum.add(args.terms[first + i * 32]);
  *own = sum.result();
  *all = coldforge::lanes_sum<32>(sum.result());
}
"""
    + _WARPS
    + """
  total<Plain>(args, first, args.plain + slot, args.plain_all + slot);
  total<coldforge::AdderFp32>(args, first, args.fp32 + slot, args.fp32_all + slot);
  total<coldforge::AdderKahan>(args, first, args.kahan + slot, args.kahan_all + slot);
  total<coldforge::AdderFp64>(args, first, args.fp64 + slot, args.fp64_all + slot);
  float values[TREE];
  for (int i = 0; i < TREE; ++i) values[i] = args.terms[first + i * 32];
  args.tree[slot] = coldforge::pairwise_sum(values);
}
"""
)
UNIT = 2.0**-24
"""The relative error of one rounding to fp32."""

Results = Mapping[str, numpy.ndarray]


@dataclass(frozen=True)
class Kernel:
    """A kernel.

    Attributes:
        text: its source.
        series: what it sums up, by name.
        outputs: what it writes for each lane of each series: element types by name.
        most_ulps: how far outputs may be off, in units in the last place of an fp32 number.
        most_additions: outputs of plain fp32 arithmetic: how many additions a term goes through at most, each
            of which may round.
    """

    text: str
    series: Mapping[str, Series]
    outputs: Mapping[str, type[numpy.floating]]
    most_ulps: Mapping[str, float]
    most_additions: Mapping[str, int]


_OWN, _TOGETHER = ("plain", "fp32", "kahan"), ("plain_all", "fp32_all", "kahan_all")
_CHAIN = 15 + 15 + STEPS // 256 + 3
"""Additions in a row of AdderFp32: of 16, of 16 such sums, of all of these, and of what is left over."""
KERNELS = {
    "products": Kernel(
        _PRODUCTS,
        products(),
        dict.fromkeys(("fp32", "kahan", "fp64"), numpy.float32),
        {"kahan": FEW_ULPS, "fp64": 0.51},
        {"fp32": STEPS},
    ),
    "sums": Kernel(
        _SUMS,
        sums(),
        dict.fromkeys((*_OWN, *_TOGETHER, "tree"), numpy.float32)
        | dict.fromkeys(("fp64", "fp64_all"), numpy.float64),
        {"kahan": FEW_ULPS, "kahan_all": FEW_ULPS, "fp64": 1e-3, "fp64_all": 1e-3},
        {"plain": STEPS, "plain_all": STEPS + 5, "fp32": _CHAIN, "fp32_all": _CHAIN + 5, "tree": 6},
    ),
}


def run(name: str, build: str, cache: Cache) -> tuple[dict[str, Results], tuple[Finding, ...]]:
    """Executes a kernel.

    Returns:
        By series and by output: [LANES]; no outputs where the kernel was stopped. What the emulator found.

    Raises:
        CompileError: g++ refused it.
    """
    kernel = KERNELS[name]
    series = list(kernel.series.values())
    arrays = [Array("terms", "input", numpy.stack([each.terms for each in series]))]
    if name == "products":
        arrays.append(Array("factors", "input", numpy.stack([_factors(each) for each in series])))
        arrays.append(Array("starts", "input", numpy.array([each.start for each in series], numpy.float32)))
    for output, dtype in kernel.outputs.items():
        arrays.append(Array(output, "output", numpy.empty((len(series), LANES), dtype)))
    call = Call(Launch(grid=len(series), block=LANES), arrays, [STEPS], order="shuffle:2")
    (result,) = emulate_calls(source(kernel.text, f"accumulators_{name}"), [call], build=build, cache=cache)
    outputs = result.outputs
    return {
        each: {output: outputs[output][i] for output in kernel.outputs if output in outputs}
        for i, each in enumerate(kernel.series)
    }, result.findings


def _factors(series: Series) -> numpy.ndarray:
    assert series.factors is not None
    return series.factors


def excess(kernel: Kernel, series: Series, output: str, lane: int, value: float) -> float:
    """How far a result is from the exact one, as a multiple of what it may be off."""
    wanted = series.all_lanes if output.endswith("_all") else series.lanes[lane]
    wanted = series.trees[lane] if output == "tree" else wanted
    off = ulps(value, wanted.exact, kernel.outputs[output])
    if output in kernel.most_ulps:
        return off / kernel.most_ulps[output]
    if off in (0.0, math.inf):
        return off
    return abs(value - wanted.exact) / (kernel.most_additions[output] * UNIT * wanted.magnitude)


def wrong(name: str, results: Mapping[str, Results]) -> list[str]:
    """What of a kernel's results is not as it has to be, a line for each."""
    kernel, lines = KERNELS[name], []
    for series, outputs in results.items():
        for output, values in outputs.items():
            each = [
                excess(kernel, kernel.series[series], output, lane, float(value))
                for lane, value in enumerate(values)
            ]
            lane = int(numpy.argmax(each))
            if each[lane] > 1.0:
                far = f"{each[lane]:.3g} times as far off as it may be"
                lines.append(f"{series}, lane {lane}, {output}: {values[lane]:.9g} is {far}")
    return lines


def faults(name: str, cache: Cache) -> tuple[Fault, ...]:
    """What `coldforge check` would say of one of the kernels, in each of its builds."""
    found: list[Fault] = []
    for build in BUILDS:
        try:
            results, findings = run(name, build, cache)
        except CompileError as error:
            return (*found, Fault("compile_error", str(error), build, "compiling"))
        found += [Fault(finding.kind, str(finding), build, name, finding) for finding in findings]
        found += [Fault("wrong_result", line, build, name) for line in wrong(name, results)]
    return tuple(found)
