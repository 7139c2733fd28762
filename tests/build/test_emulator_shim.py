# SPDX-License-Identifier: Apache-2.0
"""The emulator's CUDA words do what the real ones do, and no wrapper of the templates lacks a twin."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from coldforge.codegen.compile import Cache
from coldforge.codegen.emulator import Array, Emulation, emulate
from coldforge.codegen.emulator.build import NATIVE, runner
from coldforge.codegen.emulator.source import for_host, without_comments
from coldforge.codegen.errors import CompileError, DeclarationError, InputError
from coldforge.codegen.render import INCLUDE_FOLDER
from coldforge.codegen.space import Launch
from emulator_kernels import BASES, shared_cache, source

pytestmark = pytest.mark.build

KERNEL = """
%s
struct Args { const %s* x; %s* y; long long n; };
extern "C" __global__ void coldforge_kernel(const __grid_constant__ Args args) {
  const int t = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x %% 32;
  const auto* x = args.x; auto* y = args.y; const int n = static_cast<int>(args.n);
  (void)lane, (void)x, (void)n;
  %s
}
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return shared_cache(tmp_path_factory)


def _run(body: str, x: Any, like: Any, cache: Cache, *, head: str = "", words: str = "int", block: int = 64,
         build: str = "plain", launch: Launch | None = None) -> Emulation:  # fmt: skip
    first, _, second = words.partition(" ")
    text = KERNEL % (head, first, second or first, body)
    arrays = [Array("x", "input", x), Array("y", "updated", like)]
    launch = launch or Launch(grid=-(-len(x) // block), block=block)
    return emulate(source(text), launch, arrays, [len(x)], build=build, cache=cache, time_limit_s=2)


LANE = numpy.arange(32)


def _from(lanes: numpy.ndarray) -> Callable[[numpy.ndarray], numpy.ndarray]:
    return lambda v: v[lanes]


def _all(reduction: Callable[[numpy.ndarray], Any]) -> Callable[[numpy.ndarray], numpy.ndarray]:
    return lambda v: numpy.full(32, reduction(v))


def _mask(chosen: numpy.ndarray) -> int:
    return int((chosen.astype(numpy.int64) << LANE).sum())


# An expression of `v` = x[t] and `lane` in a warp of 32; what each lane must get, from the 32 values.
WARP: dict[str, Callable[[numpy.ndarray], numpy.ndarray]] = {
    "__shfl_sync(0xffffffffu, v, 5)": _all(lambda v: v[5]),
    "__shfl_sync(0xffffffffu, v, lane + 3, 8)": _from(LANE // 8 * 8 + (LANE + 3) % 8),
    "__shfl_up_sync(0xffffffffu, v, 3)": _from(numpy.where(LANE < 3, LANE, LANE - 3)),
    "__shfl_up_sync(0xffffffffu, v, 2, 8)": _from(numpy.where(LANE % 8 < 2, LANE, LANE - 2)),
    "__shfl_down_sync(0xffffffffu, v, 7)": _from(numpy.where(LANE + 7 > 31, LANE, LANE + 7)),
    "__shfl_down_sync(0xffffffffu, v, 3, 16)": _from(numpy.where(LANE % 16 > 12, LANE, LANE + 3)),
    "__shfl_xor_sync(0xffffffffu, v, 9)": _from(LANE ^ 9),
    # Values of earlier parts of the warp can be had, those of later parts cannot.
    "__shfl_xor_sync(0xffffffffu, v, 9, 8)": _from(
        numpy.where((LANE ^ 9) > LANE // 8 * 8 + 7, LANE, LANE ^ 9)
    ),
    "lane < 16 ? __shfl_xor_sync(0x0000ffffu, v, 1) : __shfl_xor_sync(0xffff0000u, v, 2)": _from(
        numpy.where(LANE < 16, LANE ^ 1, LANE ^ 2)
    ),
    "__ballot_sync(0xffffffffu, v % 3 == 0)": _all(lambda v: _mask(v % 3 == 0)),
    "__any_sync(0xffffffffu, v == 29)": _all(lambda v: 29 in v),
    "__all_sync(0xffffffffu, v != 29)": _all(lambda v: 29 not in v),
    "__match_any_sync(0xffffffffu, v % 4)": lambda v: numpy.array([_mask(v % 4 == k % 4) for k in v]),
    "__reduce_add_sync(0xffffffffu, v)": _all(numpy.sum),
    "__reduce_max_sync(0xffffffffu, v)": _all(numpy.max),
    "__reduce_min_sync(0xffffffffu, v)": _all(numpy.min),
    "__reduce_xor_sync(0xffffffffu, v)": _all(numpy.bitwise_xor.reduce),
}


@pytest.mark.parametrize("build", ["plain", "race"])
def test_warp_operations(build: str, cache: Cache) -> None:
    body = "const int v = x[t];\n" + "".join(
        f"y[{i} * n + t] = static_cast<int>({expression});\n" for i, expression in enumerate(WARP)
    )
    x = (numpy.arange(64) * 29 % 83).astype(numpy.int32)
    result = _run(body, x, numpy.zeros((len(WARP), 64), numpy.int32), cache, build=build)
    assert result.findings == ()
    for (expression, expected), got in zip(WARP.items(), result.outputs["y"], strict=True):
        want = numpy.concatenate([expected(x[:32]), expected(x[32:])]).astype(numpy.int64)
        numpy.testing.assert_array_equal(got, want.astype(numpy.uint32).view(numpy.int32), expression)


def test_barriers_that_vote_and_a_last_warp_of_a_few_lanes(cache: Cache) -> None:
    body = """
      y[t] = __syncthreads_count(x[t] > 20);
      y[n + t] = __syncthreads_and(x[t] > 20) * 2 + __syncthreads_or(max<int>(x[t], 0) > 38);
      y[2 * n + t] = __shfl_sync(0xffffffffu, x[t], 7) + __popc(__activemask_of(lane));
    """
    head = """
      template <class T> __device__ T max(T a, T b) { return a < b ? b : a; }
      __device__ unsigned __activemask_of(int) { return __ballot_sync(0xffffffffu, 1); }
    """
    x = numpy.arange(40, dtype=numpy.int32)
    result = _run(body, x, numpy.zeros((3, 40), numpy.int32), cache, head=head, block=40)
    assert result.findings == ()
    counts, votes, shuffled = result.outputs["y"]
    assert set(counts) == {19}
    assert set(votes) == {1}
    numpy.testing.assert_array_equal(shuffled, numpy.where(x < 32, 7 + 32, 39 + 8))


ATOMICS = {
    "atomicAdd(&s, v)": (3, lambda v: 3 + v.sum()),
    "atomicSub(&s, v)": (3, lambda v: 3 - int(v.sum())),
    "atomicMin(&s, v)": (50, lambda v: min(50, v.min())),
    "atomicMax(&s, v)": (50, lambda v: max(50, v.max())),
    "atomicAnd(&s, v | 64)": (127, lambda v: numpy.bitwise_and.reduce(v | 64)),
    "atomicOr(&s, v)": (128, lambda v: 128 | numpy.bitwise_or.reduce(v)),
    "atomicXor(&s, v)": (0, lambda v: numpy.bitwise_xor.reduce(v)),
    "atomicInc(&s, 5)": (4, lambda v: (4 + 64) % 6),
    "atomicDec(&s, 5)": (9, lambda v: (5 - 63) % 6),
    "atomicCAS(&s, t, t + 1)": (0, lambda v: 64),
}


def test_atomics(cache: Cache) -> None:
    pieces = [
        f"{{ __shared__ unsigned s; if (t == 0) s = {start}; __syncthreads(); {update}; __syncthreads();"
        f" if (t == 0) y[{i}] = s; }}\n"
        for i, (update, (start, _)) in enumerate(ATOMICS.items())
    ]
    x = (numpy.arange(64) * 29 % 64).astype(numpy.uint32)
    body = "const unsigned v = x[t];\n" + "".join(pieces)
    result = _run(body, x, numpy.zeros(len(ATOMICS), numpy.uint32), cache, words="unsigned", build="race")
    assert [str(finding) for finding in result.findings] == []
    want = [int(expected(x)) & 0xFFFFFFFF for _, expected in ATOMICS.values()]
    numpy.testing.assert_array_equal(result.outputs["y"], numpy.array(want, numpy.uint32))


@pytest.mark.parametrize(
    ("header", "word", "dtype"),
    [("cuda_fp16.h", "__half", torch.float16), ("cuda_bf16.h", "__nv_bfloat16", torch.bfloat16)],
)
def test_every_16_bit_number_converts_as_in_pytorch(
    header: str, word: str, dtype: torch.dtype, cache: Cache
) -> None:
    every = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype)
    head = f"#include <{header}>"
    back = _run("y[t] = static_cast<float>(x[t]);", every, torch.zeros(65536), cache,
                head=head, words=f"{word} float", block=1024)  # fmt: skip
    torch.testing.assert_close(back.outputs["y"], every.float(), rtol=0, atol=0, equal_nan=True)
    exact = every.float()[torch.isfinite(every.float())]
    steps = [
        exact,
        exact * (1 + 2**-9),
        exact * (1 - 2**-12),
        exact * (1 + 2**-11),
        torch.nextafter(exact, exact + 1),
    ]
    floats = torch.cat(
        [*steps, torch.tensor([float("inf"), -float("inf"), float("nan"), 65520.0, 3.4e38, 1e-45])]
    )
    body = f"if (t < n) y[t] = static_cast<{word}>(x[t]);"
    there = _run(body, floats, torch.zeros(len(floats), dtype=dtype), cache,
                 head=head, words=f"float {word}", block=1024)  # fmt: skip
    torch.testing.assert_close(there.outputs["y"], floats.to(dtype), rtol=0, atol=0, equal_nan=True)


def test_mathematical_functions(cache: Cache) -> None:
    functions = {
        "expf(v)": numpy.exp,
        "exp(v)": numpy.exp,
        "log1pf(v)": numpy.log1p,
        "tanhf(v)": numpy.tanh,
        "rsqrtf(v)": lambda v: 1 / numpy.sqrt(v),
        "fabsf(-v)": numpy.abs,
        "fmaf(v, v, 1.0f)": lambda v: v * v + 1,
        "__fdividef(v, 3.0f)": lambda v: v / 3,
        "max(v, 0.5f)": lambda v: numpy.maximum(v, 0.5),
        "__int_as_float(__float_as_int(v))": lambda v: v,
        "static_cast<float>(__clz(8) + __ffs(8))": lambda v: 0 * v + 32,
    }
    body = "const float v = x[t];\n" + "".join(f"y[{i} * n + t] = {f};\n" for i, f in enumerate(functions))
    x = numpy.linspace(0.01, 4, 64, dtype=numpy.float32)
    result = _run(body, x, numpy.zeros((len(functions), 64), numpy.float32), cache, words="float")
    for (name, function), got in zip(functions.items(), result.outputs["y"], strict=True):
        numpy.testing.assert_allclose(got, function(x.astype(numpy.float64)), rtol=3e-7, err_msg=name)


_DEFINITION = re.compile(r"\b(\w+)\s*\([^;{}]*\)\s*(?:const\s*)?\{")
_GUARDED = re.compile(r"^#if defined\(__CUDACC__\)$(.*?)^#(?:else$(.*?)^#)?endif", re.MULTILINE | re.DOTALL)


def _wrappers(text: str) -> dict[str, str]:
    """What a header defines under __CUDACC__ -> the text in which its twin may stand beside it."""
    return {
        name: alternative
        for real, alternative in _GUARDED.findall(without_comments(text))
        for name in _DEFINITION.findall(real)
        if name not in ("if", "constexpr", "for", "while", "switch")
    }


def _lacking(text: str) -> list[str]:
    """Wrappers without a twin, and PTX that is in none."""
    twins = without_comments((NATIVE / "shim/twins.h").read_text())
    lacking = [
        name for name, beside in _wrappers(text).items() if name not in _DEFINITION.findall(twins + beside)
    ]
    outside = _GUARDED.sub("", without_comments(text))
    return lacking + [word for word in ("asm", "__asm__", "__asm") if word in re.findall(r"\w+", outside)]


def test_no_wrapper_lacks_a_twin() -> None:
    headers = {p.name: p.read_text() for p in sorted((INCLUDE_FOLDER / "coldforge").glob("*.cuh"))}
    templates = {p.name: p.read_text() for p in sorted(INCLUDE_FOLDER.parent.rglob("*.cu.jinja"))}
    for name, text in {**headers, **templates}.items():
        assert _lacking(text) == [], name
    found = {wrapper for text in headers.values() for wrapper in _wrappers(text)}
    assert {"cp_async", "cp_async_commit", "cp_async_wait", "shared_address"} <= found
    assert {"add_release", "fence_acquire", "load_no_allocate", "prefetch_l2"} <= found


@pytest.mark.parametrize(
    ("planted", "lacking"),
    [
        ('__device__ __forceinline__ void pause() { asm volatile("nanosleep.u32 20;"); }', ["pause"]),
        ("template <int N>\nstatic __device__ int lane_of(\n    int x) {\n  return x % N;\n}", ["lane_of"]),
        ("struct Barrier {\n  __device__ bool try_wait() const { return true; }\n};", ["try_wait"]),
        ("inline __device__ void cp_async_commit() {}", []),
    ],
)
def test_a_wrapper_without_a_twin_is_found(planted: str, lacking: list[str]) -> None:
    header = (INCLUDE_FOLDER / "coldforge/memory.cuh").read_text()
    guard = "#if defined(__CUDACC__)\n"
    assert _lacking(header.replace(guard, f"{guard}\n{planted}\n")) == lacking
    if "asm" in planted:
        assert "asm" in _lacking(f"{header}\n{planted}\n")
    beside = f"{guard}{planted}\n#else\ninline void pause() {{}}\n#endif\n"
    assert ("pause" in lacking) == (_lacking(beside) != lacking)


def test_shared_declarations_keep_their_line() -> None:
    text = (
        "a\nextern __shared__ __align__(16) unsigned char pool[];\n"
        "  __shared__ alignas(8) Pair<int, 2> p[3][N > 2 ? 1 : 2];\n// __shared__ x\n"
    )
    lines = for_host(text).splitlines()
    assert lines[1] == "unsigned char* pool = coldforge_emulator::dynamic_shared();"
    assert lines[2] == (
        '  auto& p = coldforge_emulator::static_shared<Pair<int, 2>[(3)][(N > 2 ? 1 : 2)], 1>("p", 8);'
    )
    assert lines[3] == "// __shared__ x"
    for wrong in (
        "__shared__ int a, b;",
        "__shared__ int a = 1;",
        "extern __shared__ int a[3];",
        "f(__shared__ {",
    ):
        with pytest.raises(DeclarationError, match=r"^t\.cu\.jinja:7 \(rendered line 3\): .*__shared__"):
            for_host(f'// a\n#line 7 "t.cu.jinja"\n{wrong}')


def test_refusals_say_what_is_wrong(cache: Cache) -> None:
    base = BASES["stencil"]
    call = base.call("forward")
    with pytest.raises(InputError, match="unknown emulator build 'tsan'"):
        emulate(source(base.text), call.launch, call.arrays, [1], build="tsan", cache=cache)
    with pytest.raises(InputError, match="0 blocks of 64 threads"):
        emulate(source(base.text), Launch(grid=0, block=64), call.arrays, [1], cache=cache)
    with pytest.raises(InputError, match="no kernel coldforge_finish"):
        emulate(
            source(base.text),
            Launch(grid=1, block=64, finish_grid=1, finish_block=32),
            call.arrays,
            [1],
            cache=cache,
        )
    with pytest.raises(InputError, match="order 'sideways'"):
        base.call("sideways")
    with pytest.raises(CompileError, match="nonsense"):
        emulate(
            source(base.text.replace("float sum", "nonsense sum")), call.launch, call.arrays, [1], cache=cache
        )


def test_the_portable_switch_of_stacks_works_too(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    from coldforge.codegen.emulator import run

    def portable(build: str, cache: Cache) -> Any:
        return runner(build, cache, ("-DEMULATOR_UCONTEXT",))

    monkeypatch.setattr(run, "runner", portable)
    base = BASES["reduction"]
    call = base.call("shuffle:3")
    result = emulate(source(base.text), call.launch, call.arrays, call.sizes, build="plain", cache=cache)
    numpy.testing.assert_array_equal(result.outputs["y"], base.expected)
