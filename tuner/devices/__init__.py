# SPDX-License-Identifier: Apache-2.0
"""Devices of the worker process, one module a target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...codegen.errors import TargetUnavailable

if TYPE_CHECKING:
    from ...codegen.settings import Settings
    from ...codegen.target import Target
    from .base import Device


def open_device(target: Target, settings: Settings) -> Device:
    """Opens the device that `target` names, in this process.

    Only the worker calls it: on cuda it makes a context.

    Raises:
        TargetUnavailable: The kind is unknown or this machine has no such device.
    """
    if target.kind == "cpu":
        from .cpu import CpuDevice

        return CpuDevice(target, settings)
    if target.kind == "cuda":
        from .cuda import CudaDevice

        return CudaDevice(target, settings)
    raise TargetUnavailable(f"no device of kind {target.kind!r}: it is 'cuda' or 'cpu'")
