# SPDX-License-Identifier: Apache-2.0
"""Many small checks in one go: all are run, each twice, and one wait tells whether all is well.

On a GPU fifty shapes of a few thousand outputs cost nothing but launches and waits. So their inputs lie in
one allocation, the outputs of the first runs in another, those of the second runs in a third, and the
workspaces likewise (`Arena`). Each is poisoned, the second runs' with other numbers than the first runs':
what begins with a number that it finds there answers otherwise. Each is compared and judged as a whole, and
what was found comes back as a few numbers. Only when something is amiss each check is looked at, on what its
runs left behind.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from .bound import Judgement, judge
from .checks import (
    OUTSIDE_OUTPUT,
    OUTSIDE_WORKSPACE,
    Check,
    Verdict,
    changed_input,
    not_again,
    wrong_elements,
)
from .devices.arena import Arena
from .devices.buffers import INPUT_GUARD_BYTES, NAN_BYTE, OUTPUT_BYTE, STALE_BYTES
from .figures import CERTAIN, subtract

if TYPE_CHECKING:
    from ..codegen.space import Launch
    from .devices.base import Call, Device

_KEPT_WORKSPACES = 4
"""Sets of workspaces that are kept: neighbours in a space share their sizes."""
_FILLS = (NAN_BYTE,), STALE_BYTES
"""What lies in the outputs and workspaces of the first and the second runs."""


@dataclass(frozen=True)
class _Expected:
    """What all outputs must be, one behind the other.

    Attributes:
        reference: float64; 0 where it is not finite.
        tolerance: float32; 1 there.
        places: Where the reference is not finite.
        odd: What it is there.
        lengths: Outputs of each check.
        norms: The L2 norm of each check's reference, float64.
    """

    reference: torch.Tensor
    tolerance: torch.Tensor
    places: torch.Tensor
    odd: torch.Tensor
    lengths: list[int]
    norms: torch.Tensor

    @classmethod
    def of(cls, checks: Sequence[Check]) -> _Expected:
        whole = torch.cat([check.expected.reference.reshape(-1) for check in checks])
        tolerance = torch.cat([check.expected.tolerance.reshape(-1) for check in checks])
        places = (~whole.isfinite()).nonzero().view(-1)
        odd = whole[places]
        return cls(
            whole.index_fill(0, places, 0.0),
            tolerance.index_fill(0, places, 1.0),
            places,
            odd,
            [check.expected.reference.numel() for check in checks],
            torch.tensor([check.expected.norm for check in checks], dtype=torch.float64, device=whole.device),
        )


class SmallChecks:
    """Checks whose tensors are small, with memory for their runs.

    Args:
        device: Where variants are loaded.
        checks: Of one dtype.
    """

    def __init__(self, device: Device, checks: Sequence[Check]) -> None:
        self.checks = tuple(checks)
        self._device = device
        dtype, alignment = self.checks[0].problem.dtype.torch, device.alignment_bytes
        shapes = [check.problem.output.shape for check in self.checks]
        where = dtype, device.torch_device, alignment
        self._first, self._second = (Arena(shapes, *where, guard=OUTPUT_BYTE, fills=f) for f in _FILLS)
        self._inputs, self._bound, self._owners = _placed(self.checks, where)
        self._expected = _Expected.of(self.checks)
        total = sum(self._expected.lengths)
        self._flat = torch.empty(total, dtype=dtype, device=device.torch_device)
        self._difference = torch.empty(total, device=device.torch_device)
        self._scratch: dict[tuple[int, ...], tuple[Arena, ...]] = {}
        self._doubtful = False

    def run(self, kernel: Any, launches: Sequence[Launch], *, workspace: bool) -> Verdict:
        """Judges a variant.

        Args:
            kernel: The loaded variant.
            launches: Its launch for each check.
            workspace: Whether its argument struct has a workspace pointer.

        Raises:
            LaunchRefused, DeviceFault: As the device does.
        """
        scratch = self._workspaces(tuple(launch.workspace_bytes for launch in launches))
        calls = self._calls(kernel, launches, scratch, workspace)
        if self._doubtful:  # a run that was broken off may have spoilt them
            self._inputs.poison()
        self._doubtful = True
        guarded = (self._first, self._second, *scratch)
        for one in guarded:
            one.poison()
        for call in calls:
            call()
        spilt = [one.outside() for one in guarded]
        amiss = torch.stack((*spilt, self._first.differs(self._second), self._inputs.changed())).any()
        figures = torch.cat((self._figures(), amiss.double().view(1)))
        self._device.synchronize()
        least, most, error, odd, found = figures.tolist()
        ratio = max(-least, most)
        if found or odd or not ratio <= CERTAIN or math.isnan(error):
            return self._look(scratch, bool(found))
        self._doubtful = False
        return Verdict(True, "", error, ratio, len(self.checks))

    def _workspaces(self, sizes: tuple[int, ...]) -> tuple[Arena, ...]:
        """Workspaces of the first and the second runs; none where no check has one."""
        if sizes not in self._scratch:
            if len(self._scratch) >= _KEPT_WORKSPACES:
                self._scratch.clear()
            where = torch.uint8, self._device.torch_device, self._device.workspace_alignment_bytes
            shapes = [(size,) for size in sizes]
            fills = _FILLS if any(sizes) else ()
            self._scratch[sizes] = tuple(Arena(shapes, *where, guard=OUTPUT_BYTE, fills=f) for f in fills)
        return self._scratch[sizes]

    def _calls(
        self, kernel: Any, launches: Sequence[Launch], scratch: tuple[Arena, ...], workspace: bool
    ) -> list[Call]:
        """Each check's first and second run, one behind the other."""
        calls = []
        for index, (check, launch) in enumerate(zip(self.checks, launches, strict=True)):
            for turn, outputs in enumerate((self._first, self._second)):
                arguments = [*self._bound[index], outputs.tensors[index]]
                if workspace:
                    arguments.append(scratch[turn].tensors[index] if launch.workspace_bytes else None)
                calls.append(self._device.bind(kernel, launch, arguments, check.sizes, check.scalars))
        return calls

    def _figures(self) -> torch.Tensor:
        """Least and greatest ratio, the worst error of a check, whether an infinity is out of place."""
        expected = self._expected
        got = torch.cat([one.view(-1) for one in self._first.tensors], out=self._flat)
        odd = torch.zeros((), dtype=torch.bool, device=got.device)
        if expected.places.numel():
            there = got[expected.places].double()
            odd = ((there != expected.odd) & ~(there.isnan() & expected.odd.isnan())).any()
            got = got.index_fill(0, expected.places, 0.0)
        each = subtract(got, expected.reference, self._difference).double().split(expected.lengths)
        norms = torch.stack([torch.linalg.vector_norm(one) for one in each])
        error = torch.where(norms == 0, 0.0, norms / expected.norms).max()
        least, most = self._difference.div_(expected.tolerance).aminmax()
        return torch.stack((least.double(), most.double(), error, odd.double()))

    def _look(self, scratch: tuple[Arena, ...], amiss: bool) -> Verdict:
        """Each check in turn, on what its runs left, until one fails; `amiss`: one must."""
        error, ratio = 0.0, 0.0
        for index, check in enumerate(self.checks):
            judgement = judge(self._first.tensors[index], check.expected)
            error, ratio = max(error, judgement.error), max(ratio, judgement.ratio)
            if reason := self._fault(index, judgement, scratch):
                return Verdict(False, f"{check.name}: {reason}", error, ratio, index + 1)
        reason = "it wrote where nothing of its own lies" if amiss else ""
        return Verdict(not amiss, reason, error, ratio, len(self.checks))

    def _fault(self, index: int, judgement: Judgement, scratch: tuple[Arena, ...]) -> str:
        """What is wrong with one check; empty when nothing is."""
        check = self.checks[index]
        for place, (owner, name) in enumerate(self._owners):
            if owner == index and self._inputs.changed_at(place):
                return changed_input(name)
        if self._first.outside_at(index) or self._second.outside_at(index):
            return OUTSIDE_OUTPUT
        if any(one.outside_at(index) for one in scratch):
            return OUTSIDE_WORKSPACE
        if judgement.wrong:
            return wrong_elements(judgement, math.prod(check.problem.output.shape))
        first, second = (bits(one.tensors[index]) for one in (self._first, self._second))
        different = int((first != second).sum())
        return not_again(different) if different else ""


def _placed(
    checks: Sequence[Check], where: tuple[torch.dtype, torch.device, int]
) -> tuple[Arena, list[list[torch.Tensor | None]], list[tuple[int, str]]]:
    """The inputs of all checks in one arena: it, each check's arguments in ABI order, and for each tensor of
    the arena its check and its name."""
    present = [
        (index, spec.name, buffer.tensor)
        for index, check in enumerate(checks)
        for spec, buffer in zip(check.problem.tensors, check.inputs, strict=True)
        if buffer is not None
    ]
    arena = Arena([t.shape for *_, t in present], *where, guard=NAN_BYTE, guard_bytes=INPUT_GUARD_BYTES)
    placed: dict[tuple[int, str], torch.Tensor] = {}
    for (index, name, value), room in zip(present, arena.tensors, strict=True):
        room.copy_(value)
        placed[index, name] = room
    arena.renew_pattern()
    bound = [
        [placed.get((index, spec.name)) for spec in check.problem.tensors]
        for index, check in enumerate(checks)
    ]
    return arena, bound, [(index, name) for index, name, _ in present]


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """A float tensor's bits as integers: NaN equals itself."""
    return tensor.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])
