# SPDX-License-Identifier: Apache-2.0
"""The built extension as the loader sees it: loaded once, its variants named, enabled, and run by choice."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from .arguments import PRECISIONS
from .manifest import PackageError
from .namespace import NAMESPACE

_MARK = b"coldforge-build-key:"


_KINDS, _DTYPES = ("cpu", "cuda"), ("fp32", "fp16", "bf16")


@dataclass(frozen=True)
class Machine:
    """Where a call runs.

    Attributes:
        kind: ``cpu`` or ``cuda``.
        level: x86-64's level (2, 3, 4; 0 elsewhere), or the compute capability (90 for 9.0).
        model: the device's name.
        driver: the CUDA version that a GPU's driver is for, 13000 for 13.0.
        max_shared_bytes: that a block of a GPU may ask for.
        processors: multiprocessors of a GPU, or the threads that PyTorch uses on a CPU.
    """

    kind: str
    level: int
    model: str
    driver: int = 0
    max_shared_bytes: int = 0
    processors: int = 1


class Extension:
    """A loaded extension. Its variants are numbered; a name is ``<entry>@<arch>``.

    Args:
        path: the shared library.
        build_key: what it must have been built from.

    Raises:
        PackageError: it was built from something else, its namespace is taken, or PyTorch cannot load it.
    """

    def __init__(self, path: Path, build_key: str) -> None:
        # Looked for in the file, before loading: once its operators are registered there is no way back.
        if not is_whole(path, build_key):
            raise PackageError(f"{path} is damaged, or was built from another manifest")
        if _namespace_is_taken():
            raise PackageError(
                f"another library has registered the PyTorch namespace {NAMESPACE!r} in this process"
            )
        try:
            torch.ops.load_library(str(path))
        except (OSError, RuntimeError) as error:
            raise PackageError(f"PyTorch {torch.__version__} cannot load {path}: {error}") from None
        self._library = ctypes.CDLL(str(path))
        self._library.coldforge_variant_name.restype = ctypes.c_char_p
        self._library.coldforge_cpu_model.restype = ctypes.c_char_p
        count = self._library.coldforge_variant_count()
        self.variants = [self._library.coldforge_variant_name(number).decode() for number in range(count)]

    def runs_here(self, number: int) -> bool:
        """Whether this machine's CPU can run the variant; true for a GPU's, whose device is known at the
        call only.
        """
        return bool(self._library.coldforge_variant_runs_here(number))

    def enable(self, number: int, enabled: bool) -> None:
        """Lets the variant be dispatched, or not."""
        self._library.coldforge_enable_variant(number, int(enabled))

    def is_portable(self, number: int) -> bool:
        """Whether the variant is PTX, which a GPU's driver compiles: other machine code on each
        architecture.
        """
        return self.variants[number].rpartition("@")[2].startswith("compute_")

    def enabled(self) -> list[str]:
        """The variants that may be dispatched."""
        return [name for n, name in enumerate(self.variants) if self._library.coldforge_variant_enabled(n)]

    def last(self) -> str | None:
        """The variant that answered this thread's last call; None for the PyTorch reference."""
        number = self._library.coldforge_last_variant()
        return self.variants[number] if number >= 0 else None

    def forget_last(self) -> None:
        """Says that the reference answered this thread's last call."""
        self._library.coldforge_forget_last()

    def this_cpu(self) -> Machine:
        """This machine's CPU, as calls see it."""
        model = self._library.coldforge_cpu_model()
        level, threads = self._library.coldforge_cpu_level(), torch.get_num_threads()
        return Machine("cpu", level, model.decode(), processors=threads)

    def choose(
        self, operator: str, machine: Machine, dtype: str, precision: str, values: Sequence[int]
    ) -> str | None:
        """The variant that a call would take, None for the reference: the op's own choice, on any machine.

        Args:
            operator: its name.
            dtype: ``fp32``, ``fp16`` or ``bf16``.
            precision: the weakest error class that may answer.
            values: the operator's values, as ``FrozenOp.sizes`` gives them.

        Raises:
            KeyError: the package has no such operator.
        """
        number = self._library.coldforge_choose(
            f"{NAMESPACE}::{operator}".encode(),
            _KINDS.index(machine.kind),
            _DTYPES.index(dtype),
            ctypes.c_double(PRECISIONS[precision]),
            machine.level,
            machine.model.encode(),
            machine.driver,
            ctypes.c_int64(machine.max_shared_bytes),
            ctypes.c_int64(machine.processors),
            (ctypes.c_int64 * len(values))(*values),
        )
        if number < -1:
            raise KeyError(operator)
        return self.variants[number] if number >= 0 else None

    def none(self) -> contextlib.AbstractContextManager[None]:
        """Makes this thread's calls take the reference."""
        return self.only(len(self.variants))

    @contextlib.contextmanager
    def only(self, number: int) -> Iterator[None]:
        """Makes this thread's calls take that variant or the reference, nothing else."""
        self._library.coldforge_force_variant(number)
        try:
            yield
        finally:
            self._library.coldforge_force_variant(-1)


def digest_path(path: Path) -> Path:
    """Where the build wrote down the library's sha256."""
    return path.with_name(f"{path.name}.sha256")


def is_whole(path: Path, build_key: str) -> bool:
    """Whether the library is there, is what the build made, and was made from ``build_key``."""
    try:
        content = path.read_bytes()
        wanted = digest_path(path).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return False
    marked = content.find(_MARK + build_key.encode()) >= 0
    return marked and hashlib.sha256(content).hexdigest() == wanted


def _namespace_is_taken() -> bool:
    # A second library that defines the same namespace aborts the process, so it is asked before.
    names = torch._C._dispatch_get_all_op_names()
    return any(name.startswith(f"{NAMESPACE}::") for name in names)
