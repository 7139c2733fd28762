# SPDX-License-Identifier: Apache-2.0
"""What a kernel is compiled for and measured on: an architecture with its limits, on a device model."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .errors import TargetUnavailable, UnknownName

_KIB = 1024
# Per compute capability: threads per multiprocessor, shared memory per multiprocessor and per block
# (opt-in), in KiB.
# Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
_CUDA_LIMITS = {
    80: (2048, 164, 163),
    86: (1536, 100, 99),
    89: (1536, 100, 99),
    90: (2048, 228, 227),
    100: (2048, 228, 227),
    120: (1536, 100, 99),
}
# A representative multiprocessor count and L2 size for an architecture asked for by name alone (A100, A40,
# L40, H200, B200, RTX 5090).
_CUDA_TYPICAL = {80: (108, 40), 86: (84, 6), 89: (142, 96), 90: (132, 60), 100: (148, 126), 120: (170, 96)}
_ISA_VECTOR_BYTES = {"x86-64-v2": 16, "x86-64-v3": 32, "x86-64-v4": 64, "aarch64": 16}
_V3_FLAGS = {"avx2", "fma", "bmi1", "bmi2", "f16c", "movbe", "abm"}
_V4_FLAGS = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}


_CPU_ATTRIBUTES = ("threads", "llc_bytes", "vector_bytes")


def archs_of(kind: str) -> tuple[str, ...]:
    """Every architecture of a kind of target that can be compiled for."""
    return tuple(_ISA_VECTOR_BYTES) if kind == "cpu" else tuple(f"sm_{cc}" for cc in _CUDA_LIMITS)


def attribute_names(kind: str) -> tuple[str, ...]:
    """What expressions may read of a target of this kind."""
    return _CPU_ATTRIBUTES if kind == "cpu" else tuple(cuda_target(archs_of(kind)[0]).attributes)


@dataclass(frozen=True)
class Target:
    """An architecture and its limits.

    Attributes:
        kind: ``cuda`` or ``cpu``.
        arch: ``sm_90``, ``x86-64-v3``, ... : what a compiler is told.
        device: the model's name; ``generic`` when only an architecture was asked for.
        attributes: integers that expressions may read (limits, counts, sizes in bytes).
    """

    kind: str
    arch: str
    device: str
    attributes: Mapping[str, int] = field(hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "attributes", MappingProxyType(dict(self.attributes)))

    def __reduce__(self) -> tuple[Any, ...]:
        # A mapping proxy does not pickle; the plain dict does.
        return (Target, (self.kind, self.arch, self.device, dict(self.attributes)))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "kind": self.kind,
            "arch": self.arch,
            "device": self.device,
            "attributes": dict(self.attributes),
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Target:
        """The inverse of ``to_dict``."""
        return Target(data["kind"], data["arch"], data["device"], data["attributes"])


def cuda_target(arch: str, device: str = "generic", **measured: int) -> Target:
    """The CUDA target for ``arch``; needs no GPU.

    Args:
        arch: ``sm_90`` and the like.
        device: the GPU's model name, when one was asked.
        measured: attributes read off a device, in place of the table's.

    Raises:
        UnknownName: the architecture is not in the table.
    """
    known = {f"sm_{cc}": cc for cc in _CUDA_LIMITS}
    if arch not in known:
        raise UnknownName("arch", arch, list(known))
    cc = known[arch]
    threads, shared_sm, shared_block = _CUDA_LIMITS[cc]
    sm_count, l2_mib = _CUDA_TYPICAL[cc]
    attributes = {
        "sm": cc,
        "sm_count": sm_count,
        "max_threads": 1024,
        "max_threads_per_sm": threads,
        "static_shared_bytes": 48 * _KIB,
        "max_shared_bytes": shared_block * _KIB,
        "shared_bytes_per_sm": shared_sm * _KIB,
        "registers_per_sm": 65536,
        "max_registers": 255,
        "l2_bytes": l2_mib * _KIB * _KIB,
        "max_grid": 2**31 - 1,
    }
    return Target("cuda", arch, device, attributes | measured)


@lru_cache(maxsize=1)
def cpu_target() -> Target:
    """This machine's CPU. ``threads`` is the number that this process may use."""
    import os

    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    flags, model = _cpuinfo()
    arch = _isa_level(flags)
    attributes = {
        "threads": threads,
        "llc_bytes": _last_level_cache_bytes(),
        "vector_bytes": _ISA_VECTOR_BYTES[arch],
    }
    return Target("cpu", arch, model, attributes)


def cpu_target_for(arch: str) -> Target:
    """The cpu target of an ISA level by name: this machine's when it is its own level, else a generic one.

    Raises:
        UnknownName: no such level.
    """
    if arch not in _ISA_VECTOR_BYTES:
        raise UnknownName("arch", arch, list(_ISA_VECTOR_BYTES))
    if platform.machine() in ("x86_64", "aarch64") and cpu_target().arch == arch:
        return cpu_target()
    attributes = {"threads": 2, "llc_bytes": 32 * _KIB * _KIB, "vector_bytes": _ISA_VECTOR_BYTES[arch]}
    return Target("cpu", arch, "generic", attributes)


def detect(kind: str) -> Target:
    """The target of this machine.

    Args:
        kind: ``auto`` (a GPU when there is one, else the CPU), ``cuda`` or ``cpu``.

    Raises:
        TargetUnavailable: ``cuda`` was asked for and there is none.
        UnknownName: another word.
    """
    if kind == "cpu":
        return cpu_target()
    if kind not in ("auto", "cuda"):
        raise UnknownName("target", kind, ["auto", "cuda", "cpu"])
    if kind == "auto" and isinstance(_probe_cuda(), str):
        return cpu_target()
    return cuda_devices()[0]


_PROBE = """
import json, torch
if not torch.cuda.is_available():
    print(json.dumps({"why": "PyTorch sees no CUDA device"}))
else:
    found = []
    for index in range(torch.cuda.device_count()):
        p = torch.cuda.get_device_properties(index)
        found.append({"name": p.name, "cc": p.major * 10 + p.minor, "sm_count": p.multi_processor_count,
                      "l2_bytes": p.L2_cache_size, "max_shared_bytes": p.shared_memory_per_block_optin,
                      "shared_bytes_per_sm": p.shared_memory_per_multiprocessor})
    print(json.dumps({"devices": found}))
"""


def cuda_devices() -> tuple[Target, ...]:
    """The GPUs that this process may use, in CUDA's order; one of an architecture that coldforge does not
    know ends the row.

    Raises:
        TargetUnavailable: there is none.
    """
    found = _probe_cuda()
    if isinstance(found, str):
        raise TargetUnavailable(f"target 'cuda' is not available on this machine ({found}); use --target cpu")
    return found


@lru_cache(maxsize=1)
def _probe_cuda() -> tuple[Target, ...] | str:
    """Asks a short-lived child about the GPUs: the process that tunes must never hold a CUDA context."""
    import json

    if not any(
        Path(p).exists()
        for p in ("/dev/nvidiactl", "/dev/nvidia0", "/proc/driver/nvidia/version", "/dev/dxg")
    ):
        return "no NVIDIA driver"
    try:
        run = subprocess.run(
            [sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=120, check=False
        )
        answer = json.loads(run.stdout.strip().splitlines()[-1])
    except (subprocess.TimeoutExpired, OSError, ValueError, IndexError):
        return "asking PyTorch about the GPU failed"
    if "why" in answer:
        return str(answer["why"])
    targets: list[Target] = []
    for found in answer["devices"]:
        arch = f"sm_{found['cc']}"
        if found["cc"] not in _CUDA_LIMITS:
            unknown = f"{found['name']} is {arch}, which coldforge does not know"
            return tuple(targets) or unknown
        names = ("sm_count", "l2_bytes", "max_shared_bytes", "shared_bytes_per_sm")
        measured = {name: int(found[name]) for name in names}
        targets.append(cuda_target(arch, found["name"], **measured))
    return tuple(targets) or "PyTorch sees no CUDA device"


def _cpuinfo() -> tuple[set[str], str]:
    flags: set[str] = set()
    model = platform.processor() or platform.machine()
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return flags, model
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            flags = set(value.split())
        elif key.strip() == "model name":
            model = value.strip()
    return flags, model


def _isa_level(flags: set[str]) -> str:
    if platform.machine() == "aarch64":
        return "aarch64"
    if flags >= _V3_FLAGS | _V4_FLAGS:
        return "x86-64-v4"
    return "x86-64-v3" if flags >= _V3_FLAGS else "x86-64-v2"


def _last_level_cache_bytes() -> int:
    largest = 0
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        scale = {"K": _KIB, "M": _KIB * _KIB}.get(text[-1:], 1)
        digits = text.rstrip("KM")
        if digits.isdigit():
            largest = max(largest, int(digits) * scale)
    return largest or 8 * _KIB * _KIB
