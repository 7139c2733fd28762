# SPDX-License-Identifier: Apache-2.0
"""The real compiler and worker behind the loop's two interfaces, and the versions that name a study."""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..codegen.atomic import sweep
from ..codegen.compile import Artifact, Cache
from ..codegen.compile.pool import CompilePool, CompileRequest
from ..codegen.errors import CompileError
from ..codegen.render import KernelSource
from ..codegen.settings import Settings
from ..codegen.target import Target
from .client import WorkerClient
from .outcome import TrialResult
from .plan import Plan, Toolchain
from .request import TrialRequest, trial_request
from .tools import Job

# What decides a verdict and a time besides the variant itself and its declaration.
_JUDGING_FILES = (
    *("inputs.py", "draws.py", "shapes.py", "bound.py", "floor.py", "verify.py", "checks.py"),
    *("small_checks.py", "large_check.py", "examiner.py", "figures.py", "measure.py"),
    *("workbench.py", "timed_sets.py", "beside.py", "energy.py", "devices/*.py"),
)
_JUDGING_MODULES = tuple(
    Path(__file__).parents[1] / name
    for name in ("codegen/dtypes.py", "codegen/chain.py", "codegen/steps.py", "templates/reductions.py")
)
_DRIVER_FILE = Path("/proc/driver/nvidia/version")


class PoolCompiler:
    """Compiles in several processes, through the cache. Making one removes what killed runs left half built
    under ``settings.home``.
    """

    def __init__(self, target: Target, settings: Settings) -> None:
        self._target, self.jobs = target, settings.jobs
        cache = Cache(settings.home / "cache")
        cache.sweep()
        sweep(settings.home / "devices")
        self._pool = CompilePool(cache, settings.jobs, settings.compile_limit_s)

    @property
    def load(self) -> int:
        """See `tools.Compiler`."""
        return self._pool.load

    @property
    def waitables(self) -> Sequence[Any]:
        """See `tools.Waited`."""
        return self._pool.waitables

    @property
    def patience_s(self) -> float | None:
        """See `tools.Waited`."""
        return self._pool.patience_s

    def submit(self, source: KernelSource) -> int:
        """See `tools.Compiler`."""
        return self._pool.submit(CompileRequest(source, self._target))

    def collect(self) -> list[tuple[int, Artifact | CompileError]]:
        """See `tools.Compiler`."""
        return self._pool.collect()

    def abandon(self, numbers: Iterable[int]) -> None:
        """See `tools.Compiler`."""
        self._pool.abandon(numbers)

    def hush(self) -> None:
        """Stops the compilers while something is timed."""
        self._pool.pause()

    def unhush(self) -> None:
        """Lets them go on."""
        self._pool.resume()

    def compile(self, sources: Sequence[KernelSource]) -> Iterator[tuple[int, Artifact | CompileError]]:
        """See `tools.Compiler`."""
        return self._pool.compile(CompileRequest(source, self._target) for source in sources)

    def close(self) -> None:
        """Ends the processes."""
        self._pool.close()


class WorkerMeasurer:
    """One study's variants in a device's worker process.

    Args:
        client: the worker; it may serve other studies before and after.
        plan: the study's subject.
        roots: folders with declarations beside the built-in ones.
    """

    def __init__(self, client: WorkerClient, plan: Plan, roots: Sequence[Path] = ()) -> None:
        self._client, self._plan, self._roots = client, plan, tuple(str(root) for root in roots)

    @property
    def waitables(self) -> Sequence[Any]:
        """See `tools.Waited`."""
        return self._client.waitables

    @property
    def patience_s(self) -> float | None:
        """See `tools.Waited`."""
        return self._client.patience_s

    def begin(self, job: Job, best_ms: float | None, handed_over: Callable[[], None]) -> None:
        """See `tools.Measurer`."""
        self._client.begin(self._request(job, best_ms), handed_over=handed_over)

    def poll(self) -> TrialResult | None:
        """See `tools.Measurer`."""
        return self._client.poll()

    def finals(self, jobs: Sequence[Job], *, energy: bool = False) -> list[TrialResult]:
        """See `tools.Measurer`."""
        return self._client.finals([self._request(job, None) for job in jobs], energy=energy)

    def close(self) -> None:
        """Ends the worker."""
        self._client.close()

    def _request(self, job: Job, best_ms: float | None) -> TrialRequest:
        plan, point = self._plan, job.point
        space, config = plan.spaces[point.template], plan.config(point)
        more = {"precision": plan.precision, "best_ms": best_ms, "roots": self._roots}
        return trial_request(space, plan.problem, config, job.artifact, **more)


def toolchain_of(target: Target) -> Toolchain:
    """The compiler, driver and verification that a study on ``target`` depends on. Makes no device context.

    Raises:
        ToolMissing: the target's compiler is not installed.
    """
    if target.kind == "cuda":
        from ..codegen.compile import nvrtc as compiler
    else:
        from ..codegen.compile import host as compiler
    flags = tuple(compiler.compile_flags(target.arch))
    driver = _cuda_driver() if target.kind == "cuda" else ""
    return Toolchain(compiler.compiler_version(), flags, driver, _judging_digest())


def _cuda_driver() -> str:
    """The NVIDIA driver's version; empty when nothing tells."""
    try:
        found = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)", _DRIVER_FILE.read_text())
        if found:
            return found.group(1)
    except OSError:
        pass  # not everywhere: some containers and WSL lack it
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return ""


def _judging_digest() -> str:
    """Of the code that judges, and of the PyTorch that computes references."""
    digest = hashlib.sha256(version("torch").encode())
    for pattern in _JUDGING_FILES:
        for path in sorted(Path(__file__).parent.glob(pattern)):
            digest.update(path.read_bytes())
    for path in _JUDGING_MODULES:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
