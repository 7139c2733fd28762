# SPDX-License-Identifier: Apache-2.0
"""A kernel that is run twice, on the hardware and in the emulator, and whether both came to the same."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy
import torch
from coldforge.codegen.render import KernelSource, inline_headers
from coldforge.codegen.space import Launch

THREADS = 64
_TEXT = """
%(includes)s
struct Args { const %(input)s* x; %(output)s* y; long long n; };
%(head)s
extern "C" __global__ void coldforge_kernel(const __grid_constant__ Args args) {
  const int t = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x), n = static_cast<int>(args.n);
  const int lane = static_cast<int>(threadIdx.x) %% 32;
  const %(input)s* x = args.x;
  %(output)s* y = args.y;
  (void)lane, (void)n, (void)x, (void)y;
%(body)s
}
"""


@dataclass(frozen=True)
class Twin:
    """A kernel `y = f(x)`.

    Attributes:
        body: statements; `t` is the thread's number, `lane` its place in the warp, `n` the length of a row.
        x: the input, on the host.
        y: what the output begins as.
        n: how many threads; a whole number of blocks unless `block` says so.
        ulps: how many units in the last place of the output's type the two may differ by; 0: the same bits,
            but for the payload of a NaN, which no standard fixes.
        atol: how much they may differ by in any case.
        archs: the only architectures that it can be compiled for; none: all.
        expected: what the output must be, where that is said in other words than the kernel's.
    """

    body: str
    x: torch.Tensor
    y: torch.Tensor
    n: int
    input: str = "int"
    output: str = "int"
    head: str = ""
    includes: str = ""
    block: int = THREADS
    ulps: int = 0
    atol: float = 0.0
    archs: tuple[str, ...] = ()
    expected: torch.Tensor | None = None

    @property
    def source(self) -> KernelSource:
        """The text, its headers inlined."""
        fields = {name: getattr(self, name) for name in ("includes", "input", "output", "head", "body")}
        text = inline_headers(_TEXT % fields, "twin.cu")
        return KernelSource(
            text, "coldforge_kernel", hashlib.sha256(text.encode()).hexdigest(), "twin", "cuda"
        )

    @property
    def launch(self) -> Launch:
        """A thread for each of `n`."""
        return Launch(grid=-(-self.n // self.block), block=self.block)


def ints(values: numpy.ndarray) -> torch.Tensor:
    return torch.from_numpy(numpy.ascontiguousarray(values, numpy.uint32).view(numpy.int32))


def rows(expressions: list[str], kind: str = "") -> str:
    cast = f"static_cast<{kind}>" if kind else ""
    return "".join(f"  y[{i} * n + t] = {cast}({each});\n" for i, each in enumerate(expressions))


def integers() -> torch.Tensor:
    """64 words: corners, powers of two and their neighbours, and some of no pattern."""
    corners = [0, 1, 2, 3, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFF, 0xFFFFFFFE, 0x0000FFFF, 0xFFFF0000]
    powers = [1 << k for k in range(2, 31, 3)] + [(1 << k) - 1 for k in range(2, 31, 3)]
    some = [(k * 2654435761 + 12345) & 0xFFFFFFFF for k in range(64)]
    return ints(numpy.array((corners + powers + some)[:64], numpy.uint64).astype(numpy.uint32))


def differences(twin: Twin, got: torch.Tensor, want: torch.Tensor) -> list[str]:
    """What of two outputs is not the same, in a few lines; empty when all is."""
    got, want = got.reshape(-1), want.reshape(-1)
    same = _bits(got) == _bits(want)
    if got.is_floating_point():
        same |= got.isnan() & want.isnan()
        same |= (_ordered(got) - _ordered(want)).abs() <= twin.ulps
        same |= (got.double() - want.double()).abs() <= twin.atol
        same &= got.isnan() == want.isnan()
    length = twin.y.shape[-1] if twin.y.dim() > 1 else twin.y.numel()
    return [
        f"row {place // length}, number {place % length}: "
        f"{got[place].item()!r} instead of {want[place].item()!r}"
        for place in (~same).nonzero().view(-1).tolist()
    ][:20]


_INTEGER = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _bits(values: torch.Tensor) -> torch.Tensor:
    return values.contiguous().view(_INTEGER[values.element_size()])


def _ordered(values: torch.Tensor) -> torch.Tensor:
    """Neighbouring numbers become neighbouring integers."""
    bits = _bits(values).to(torch.int64)
    return torch.where(bits < 0, -(bits & ((1 << (8 * values.element_size() - 1)) - 1)), bits)
