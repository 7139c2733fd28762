# SPDX-License-Identifier: Apache-2.0
"""One check whose tensors are large: its two runs go into two outputs, so that none has to be copied."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from .bound import judge
from .checks import (
    OUTSIDE_OUTPUT,
    OUTSIDE_WORKSPACE,
    Check,
    Verdict,
    changed_input,
    not_again,
    wrong_elements,
)
from .devices.buffers import STALE_BYTES
from .figures import CERTAIN, Judge, summed
from .small_checks import bits

if TYPE_CHECKING:
    from ..codegen.space import Launch
    from .devices.base import Device
    from .devices.buffers import GuardedTensor


class LargeOutputs:
    """Outputs that large checks of one study share: two of each shape."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._pairs: dict[tuple[Any, ...], tuple[GuardedTensor, GuardedTensor]] = {}
        self.judge = Judge(device.torch_device)
        self.doubtful: set[int] = set()  # checks whose inputs a run that was broken off may have spoilt

    def pair(self, check: Check, stale: int) -> tuple[GuardedTensor, GuardedTensor]:
        """Two outputs of a check's shape, the first poisoned with NaN, the second with the byte `stale`."""
        shape, dtype = check.problem.output.shape, check.problem.dtype.torch
        if (shape, dtype) in self._pairs:
            self._pairs[shape, dtype][0].poison()
        else:
            two = tuple(self._device.allocate(shape, dtype) for _ in range(2))
            self._pairs[shape, dtype] = (two[0], two[1])
        self._pairs[shape, dtype][1].poison(stale)
        return self._pairs[shape, dtype]


class LargeCheck:
    """A check on memory of its own for its inputs, and shared outputs.

    Args:
        device: Where variants are loaded.
        check: What is run.
        outputs: Of the study.
        stale: The byte that fills the second run's output and workspace.
    """

    def __init__(
        self, device: Device, check: Check, outputs: LargeOutputs, stale: int = STALE_BYTES[0]
    ) -> None:
        self.check = check
        self._stale = stale
        self._device, self._outputs = device, outputs

    def run(self, kernel: Any, launch: Launch, *, workspace: bool) -> Verdict:
        """Judges a variant.

        Args:
            kernel: The loaded variant.
            launch: Its launch at the check's shape.
            workspace: Whether its argument struct has a workspace pointer.

        Raises:
            LaunchRefused, DeviceFault: As the device does.
        """
        check, device = self.check, self._device
        pair = self._outputs.pair(check, self._stale)
        scratch = device.allocate_workspace(launch.workspace_bytes)
        inputs = [None if buffer is None else buffer.tensor for buffer in check.inputs]
        beside = [None if scratch is None else scratch.tensor] if workspace else []
        calls = [
            device.bind(kernel, launch, [*inputs, output.tensor, *beside], check.sizes, check.scalars)
            for output in pair
        ]
        doubtful = self._outputs.doubtful
        if id(check) in doubtful:
            self._restore()
        doubtful.add(id(check))
        spilt = []
        for call in calls:
            if spilt and scratch is not None:
                scratch.poison(self._stale)
            call()
            spilt.append(_flag(device) if scratch is None else scratch.outside())
        outside = [one.outside() for one in pair]
        first, second = (_words(one.tensor) for one in pair)
        flags = torch.stack((*spilt, *outside, (first != second).any(), *self._changed()))
        # An infinity or a NaN in the reference is nothing for the quick eye.
        quick = self._outputs.judge.look(pair[0].tensor, check.expected) if check.expected.finite else None
        device.synchronize()
        found = flags.tolist()
        if any(found):
            self._restore()  # at once: later variants must not be judged on spoilt inputs
        doubtful.discard(id(check))
        if quick is not None and not any(found):
            ratio, error = summed(quick.tolist(), check.expected.norm)
            if ratio <= CERTAIN and 0.0 < error < math.inf:
                return Verdict(True, "", error, ratio, 1)
        return self._look(pair, found)

    def _changed(self) -> list[torch.Tensor]:
        """For each input whether it is not as it was."""
        return [
            _flag(self._device)
            if buffer is None or pristine is None
            else (buffer.storage.view(torch.int64) != pristine.view(torch.int64)).any()
            for buffer, pristine in zip(self.check.inputs, self.check.pristine, strict=True)
        ]

    def _look(self, pair: tuple[GuardedTensor, GuardedTensor], flags: list[bool]) -> Verdict:
        """What is wrong, if anything."""
        check = self.check
        judgement = judge(pair[0].tensor, check.expected)
        spilt, outside, different, changed = any(flags[:2]), any(flags[2:4]), flags[4], flags[5:]
        reason = ""
        if any(changed):
            reason = changed_input(check.problem.tensors[changed.index(True)].name)
        elif outside:
            reason = OUTSIDE_OUTPUT
        elif spilt:
            reason = OUTSIDE_WORKSPACE
        elif judgement.wrong:
            reason = wrong_elements(judgement, math.prod(check.problem.output.shape))
        elif different:
            reason = not_again(int((bits(pair[0].tensor) != bits(pair[1].tensor)).sum()))
        named = f"{check.name}: {reason}" if reason else ""
        return Verdict(not reason, named, judgement.error, judgement.ratio, 1)

    def _restore(self) -> None:
        """The inputs as they must be."""
        for buffer, pristine in zip(self.check.inputs, self.check.pristine, strict=True):
            if buffer is not None and pristine is not None:
                buffer.storage.copy_(pristine)


def _flag(device: Device) -> torch.Tensor:
    return torch.zeros((), dtype=torch.bool, device=device.torch_device)


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's bits in as wide words as its size and place allow."""
    flat = tensor.view(-1)
    wide = flat.nbytes % 8 == 0 and flat.data_ptr() % 8 == 0
    return flat.view(torch.uint8).view(torch.int64) if wide else bits(flat)
