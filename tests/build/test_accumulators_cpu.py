# SPDX-License-Identifier: Apache-2.0
"""The accumulators of the cpu templates by themselves: on sums that plain fp32 gets wrong, compensated and
double ones are right to the last few bits, a tree keeps its bound, infinities and NaN stay what they are."""

from __future__ import annotations

import ctypes
import hashlib
import math

import numpy
import pytest
from accumulator_kernels import UNIT
from accumulator_series import FEW_ULPS, LANES, MANY_ULPS, STEPS, Series, products, sums, ulps
from coldforge.codegen.compile import Cache, compile_source
from coldforge.codegen.render import KernelSource, inline_headers
from coldforge.codegen.target import cpu_target

pytestmark = pytest.mark.build

_CONFIG = """
struct Args { const float* terms; double *plain, *fp32, *kahan, *fp64; };
template <bool KAHAN, bool FP64>
struct Config {
  static constexpr int UNROLL = 1, STREAMS = 1, VEC = 8;
  static constexpr bool ACC_KAHAN = KAHAN, ACC_FP64 = FP64;
};
"""
_ENTRY = """
extern "C" __attribute__((visibility("default"))) void coldforge_kernel(int64_t, int64_t, void* raw) {
  const Args& args = *static_cast<const Args*>(raw);
"""
# All terms come to one sum: each of eight lanes adds up every eighth.
_SUMMATION = f"""
#include "coldforge/cpu_summation.hpp"
namespace {{
constexpr int64_t COUNT = {STEPS * LANES};
{_CONFIG}
template <class C>
double total(const float* terms) {{
  coldforge::Summation<C, 8> all;
  all.template add_run<1>(terms, COUNT);
  return all.total();
}}
}}  // namespace
{_ENTRY}
  coldforge::Vector<float, 8> plain = {{}};
  for (int64_t i = 0; i < COUNT; i += 8) plain += coldforge::load<float, 8>(args.terms + i);
  args.plain[0] = 0.0;
  for (int lane = 0; lane < 8; ++lane) args.plain[0] += double(plain[lane]);
  args.fp32[0] = total<Config<false, false>>(args.terms);
  args.kahan[0] = total<Config<true, false>>(args.terms);
  args.fp64[0] = total<Config<false, true>>(args.terms);
}}
"""
# Rows are input channels, columns output channels, each of which comes to a sum of its own.
_TAP_PRODUCT = f"""
#include "coldforge/cpu_tap_product.hpp"
namespace {{
{_CONFIG}
struct Problem {{ static constexpr int C_in = {STEPS}, C_out = {LANES}, R = 1, S = 1; }};
template <class C>
void multiply(const float* weight, double* out) {{
  static coldforge::TapProduct<Problem, C, 1> product;
  product.multiply(weight, [](int, int) {{ return 1.0f; }}, 0, {LANES}, out);
}}
}}  // namespace
{_ENTRY}
  multiply<Config<false, false>>(args.terms, args.plain);
  for (int k = 0; k < {LANES}; ++k) args.fp32[k] = args.plain[k];
  multiply<Config<true, false>>(args.terms, args.kahan);
  multiply<Config<false, true>>(args.terms, args.fp64);
}}
"""
# Every lane multiplies its terms by factors, and adds the products to what it starts with.
_PRODUCT_SUM = f"""
#include "coldforge/cpu_product_sum.hpp"
namespace {{
struct Args {{
  const float* terms;
  double *plain, *fp32, *kahan, *fp64;
  const float *factors, *start;
}};
template <class Acc, class Sum>
void add_up(const Args& args, double* out) {{
  for (int lane = 0; lane < {LANES}; lane += 8) {{
    Sum sum;
    sum.start(Acc(7e8f));  // to be forgotten
    for (int i = 0; i < 9; ++i)
      sum.add_product(coldforge::broadcast<Acc, 8>(Acc(3.3f)), coldforge::broadcast<Acc, 8>(Acc(3.3f)));
    sum.start(Acc(args.start[0]));
    for (int64_t i = lane; i < {STEPS * LANES}; i += {LANES})
      sum.add_product(coldforge::load<Acc, 8>(args.terms + i), coldforge::load<Acc, 8>(args.factors + i));
    const auto total = sum.result();
    for (int j = 0; j < 8; ++j) out[lane + j] = double(total[j]);
  }}
}}
}}  // namespace
{_ENTRY}
  add_up<float, coldforge::PlainSum<float, 8>>(args, args.plain);
  for (int k = 0; k < {LANES}; ++k) args.fp32[k] = args.plain[k];
  add_up<float, coldforge::CompensatedProductSum<8>>(args, args.kahan);
  add_up<double, coldforge::PlainSum<double, 8>>(args, args.fp64);
}}
"""
OUTPUTS = ("plain", "fp32", "kahan", "fp64")
# A product adds four input channels in plain fp32 first: sums that cancel among them are not brought back.
OF_PRODUCTS = [name for name, each in sums().items() if "alike" in name or "tiny" in name or not each.ill]


def _compiled(text: str, cache: Cache) -> ctypes.CDLL:
    whole = inline_headers(text, "small.cpp")
    digest = hashlib.sha256(whole.encode()).hexdigest()
    source = KernelSource(whole, "coldforge_kernel", digest, "small", "cpp")
    return ctypes.CDLL(str(compile_source(source, cpu_target(), cache).path))


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ctypes.CDLL]:
    cache = Cache(tmp_path_factory.mktemp("cache"))
    texts = {"summation": _SUMMATION, "product": _TAP_PRODUCT, "products": _PRODUCT_SUM}
    return {name: _compiled(text, cache) for name, text in texts.items()}


def _aligned(values: numpy.ndarray) -> numpy.ndarray:
    """A copy at an address that vectors are aligned to."""
    room = numpy.zeros(values.size + 16, numpy.float32)
    first = -room.ctypes.data // 4 % 16
    room[first : first + values.size] = values.ravel()
    return room[first:]


def _run(library: ctypes.CDLL, series: Series) -> dict[str, numpy.ndarray]:
    """By output: float64 [LANES]."""
    terms, start = _aligned(series.terms), numpy.float32([series.start])
    factors = terms if series.factors is None else _aligned(series.factors)
    found = {output: numpy.zeros(LANES) for output in OUTPUTS}
    words = [terms.ctypes.data, *(found[output].ctypes.data for output in OUTPUTS)]
    words += [factors.ctypes.data, start.ctypes.data]
    arguments = (ctypes.c_void_p * len(words))(*words)
    library.coldforge_kernel(ctypes.c_int64(0), ctypes.c_int64(1), ctypes.byref(arguments))
    return found


@pytest.mark.parametrize("name", sums())
def test_sums(name: str, libraries: dict[str, ctypes.CDLL]) -> None:
    series = sums()[name]
    found, wanted = _run(libraries["summation"], series), series.all_lanes
    off = {output: ulps(float(values[0]), wanted.exact) for output, values in found.items()}
    assert off["kahan"] < FEW_ULPS
    assert ulps(float(found["fp64"][0]), wanted.exact, numpy.float64) < 0.001
    if series.ill:
        assert off["plain"] > MANY_ULPS
    if wanted.magnitude < float(numpy.finfo(numpy.float32).max):
        depth = math.ceil(math.log2(STEPS * LANES / 8)) + 1
        assert abs(found["fp32"][0] - wanted.exact) < depth * UNIT * wanted.magnitude
    else:
        assert off["fp32"] == 0.0


@pytest.mark.parametrize("name", OF_PRODUCTS)
def test_products(name: str, libraries: dict[str, ctypes.CDLL]) -> None:
    series = sums()[name]
    found = _run(libraries["product"], series)
    for lane, wanted in enumerate(series.lanes):
        off = {output: ulps(float(values[lane]), wanted.exact) for output, values in found.items()}
        assert off["kahan"] < FEW_ULPS, lane
        assert ulps(float(found["fp64"][lane]), wanted.exact, numpy.float64) < 0.001, lane
        if series.ill:
            assert off["plain"] > MANY_ULPS, lane


@pytest.mark.parametrize("name", products())
def test_sums_of_products(name: str, libraries: dict[str, ctypes.CDLL]) -> None:
    series, far = products()[name], 0
    found = _run(libraries["products"], series)
    for lane, wanted in enumerate(series.lanes):
        off = {output: ulps(float(values[lane]), wanted.exact) for output, values in found.items()}
        assert off["kahan"] < FEW_ULPS, lane
        if wanted.magnitude < float(numpy.finfo(numpy.float32).max):
            assert ulps(float(found["fp64"][lane]), wanted.exact, numpy.float64) < 0.001, lane
        far += off["plain"] > MANY_ULPS
    assert not series.ill or far > LANES // 2


def test_a_tree_keeps_a_bound_that_a_long_chain_breaks(libraries: dict[str, ctypes.CDLL]) -> None:
    series = sums()["all alike"]
    found, wanted = _run(libraries["summation"], series), series.all_lanes
    depth = math.ceil(math.log2(STEPS * LANES / 8)) + 1
    assert abs(found["plain"][0] - wanted.exact) > 3 * depth * UNIT * wanted.magnitude
