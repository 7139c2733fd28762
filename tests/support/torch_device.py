# SPDX-License-Identifier: Apache-2.0
"""A device whose kernels are Python functions of (tensors, sizes, scalars): no compiler is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from coldforge.codegen.settings import Settings
from coldforge.codegen.space import Launch
from coldforge.codegen.target import Target
from coldforge.tuner.devices.base import Call, Device

Kernel = Callable[..., None]


class TorchDevice(Device):
    """Runs kernels that are Python functions of (tensors, sizes, scalars)."""

    kind = "cpu"
    torch_device = torch.device("cpu")

    def load(self, artifact: Any) -> Kernel:
        return artifact

    def unload(self, kernel: Kernel) -> None:
        pass

    def bind(
        self,
        kernel: Kernel,
        launch: Launch,
        tensors: Sequence[torch.Tensor | None],
        sizes: Sequence[int],
        scalars: Sequence[float],
    ) -> Call:
        return lambda: kernel(list(tensors), list(sizes), list(scalars))

    def synchronize(self) -> None:
        pass

    def sample_ms(self, calls: Sequence[Call], count: int, *, cold: bool) -> list[float]:
        return [1.0 for _ in range(count)]

    def flush(self) -> None:
        pass

    def settle(self) -> None:
        pass

    def facts(self) -> dict[str, Any]:
        return {"model": "none"}


def torch_device() -> TorchDevice:
    """One of one thread."""
    target = Target("cpu", "x86-64-v2", "none", {"threads": 1, "llc_bytes": 1 << 20, "vector_bytes": 16})
    return TorchDevice(target, Settings(Path("unused"), 1, "g++", may_build=False))
