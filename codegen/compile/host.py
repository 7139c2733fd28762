# SPDX-License-Identifier: Apache-2.0
"""C++ source -> shared library, with the system's compiler, for one instruction-set level of a cpu target.

The flags are explicit. `-march=native` would make a library that dies with SIGILL on an older machine, and
`-ffast-math` links start-up code that makes the whole process flush denormals, PyTorch's own included.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..atomic import write_text
from ..errors import ColdforgeError, CompileError, ToolMissing
from ..settings import COMPILE_LIMIT_S, load_settings
from .artifact import Artifact, Resources
from .cache import Cache, entry_key
from .elf import Section, code_bytes, code_digest
from .process import run_group

if TYPE_CHECKING:
    from ..render import KernelSource
    from ..target import Target

# What decides the machine code: the frozen extension compiles a cpu variant with exactly these. Without
# -fno-trapping-math, which changes no value, the comparisons of an epilogue stay scalar branches: 8 times
# slower was seen.
COMPILE_FLAGS = (
    "-std=c++17",
    "-O3",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-asynchronous-unwind-tables",
    "-Wno-psabi",
)
# Only libm is needed; the C++ runtime is linked only where something asks for it.
_LINK_FLAGS = ("-shared", "-Wl,--as-needed", "-Wl,--no-undefined", "-Wl,--build-id=none", "-lm")
# What g++ says of a part that was killed, and any part of a full disk.
_NO_ROOM = "No space left on device"
# What the driver says of a cc1plus or as, and what collect2 says of an ld.
_KILLED = ("Killed signal terminated program", "terminated with signal 9")
_MARCH = {"aarch64": "armv8-a"}


def compile_flags(arch: str) -> tuple[str, ...]:
    """The compile flags of a cpu arch ("x86-64-v3", "aarch64"), in order."""
    return (*COMPILE_FLAGS, f"-march={_MARCH.get(arch, arch)}")


@functools.cache
def _version_of(path: str, _modified_ns: int) -> str:
    try:
        command = [path, "--version"]
        banner = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise ToolMissing(f"{path} --version failed ({error}); it is not a usable C++ compiler") from error
    return banner.splitlines()[0] if banner else path


def compiler_version(cxx: str | None = None) -> str:
    """Name and version of the C++ compiler: `cxx`, else the one the settings name.

    Raises:
        ToolMissing: There is none.
    """
    return _version_of(*find_compiler(cxx))


def find_compiler(cxx: str | None = None) -> tuple[str, int]:
    """Path and time of change (ns) of the C++ compiler: `cxx`, else the one the settings name.

    Raises:
        ToolMissing: There is none.
    """
    wanted = cxx or load_settings().cxx
    path = shutil.which(wanted)
    if path is None:
        hint = "install it (Debian, Ubuntu: apt install g++) or name another in COLDFORGE_CXX"
        raise ToolMissing(f"no C++ compiler {wanted!r} on PATH; {hint}")
    return path, os.stat(path).st_mtime_ns


def compile_cpp(
    source: KernelSource,
    target: Target,
    cache: Cache,
    *,
    cxx: str | None = None,
    time_limit_s: float | None = COMPILE_LIMIT_S,
) -> Artifact:
    """Compiles one C++ kernel to a shared library.

    Args:
        source: The self-contained text.
        target: A cpu target; its arch is the instruction-set level.
        cache: Where the library is kept and looked for.
        cxx: The compiler, instead of the settings' one.
        time_limit_s: Seconds after which the compiler and all its children are killed; never when None.

    Raises:
        CompileError: The compiler refused the source, crashed, or ran past the limit; the log is attached.
        ToolMissing: There is no compiler.
    """
    compiler = compiler_version(cxx)
    path, _ = find_compiler(cxx)
    flags = compile_flags(target.arch)
    key = entry_key(source.text, compiler, (*flags, *_LINK_FLAGS), target.arch)

    def build(work: Path) -> Artifact:
        started = time.perf_counter()
        write_text(work / "kernel.cpp", source.text)
        command = [path, *flags, "kernel.cpp", "-o", "kernel.so", *_LINK_FLAGS]
        log = run_compiler(command, work, time_limit_s, source.name)
        write_text(work / "log.txt", log)
        library = (work / "kernel.so").read_bytes()
        return Artifact(
            path=work / "kernel.so",
            source_digest=source.digest,
            name=source.name,
            resources=Resources(code_bytes=code_bytes(library)),
            code_digest=code_digest(library, _decides_behaviour),
            compiler=compiler,
            flags=flags,
            seconds=time.perf_counter() - started,
        )

    return cache.get_or_build(key, build)


def _decides_behaviour(section: Section) -> bool:
    # Constants and shuffle masks live in .rodata: the same code with others is another kernel.
    return (section.executable and section.name == ".text") or section.name.startswith(".rodata")


def run_compiler(command: Sequence[str], work: Path, time_limit_s: float | None, name: str) -> str:
    """Runs a compiler in the folder `work`; cc1plus, as and ld die with it. One that was killed from outside
    is run once more.

    Returns:
        What it printed.

    Raises:
        CompileError: It refused, crashed, or ran past the limit; the message begins with `name`.
        ToolMissing: It cannot be started.
        ColdforgeError: There is no room for what it writes.
    """
    status, log = _run_once(command, work, time_limit_s)
    if status == -signal.SIGKILL or (status and any(words in log for words in _KILLED)):
        status, log = _run_once(command, work, time_limit_s)
    if status is None:
        raise CompileError(f"{name}: the compiler ran past {time_limit_s:g} s and was killed", log)
    if status and _NO_ROOM in log:  # no fault of the source, which must not be remembered for it
        raise ColdforgeError(f"cannot compile in {work.parent}: {_NO_ROOM.lower()}")
    if status:
        raise CompileError(f"{name}: {_first_error(log, status)}", log)
    return log


def _run_once(command: Sequence[str], work: Path, time_limit_s: float | None) -> tuple[int | None, str]:
    """Status, None past the limit, and what was printed."""
    environment = {"LC_ALL": "C", "TMPDIR": str(work)}
    try:
        ended = run_group(command, work, time_limit_s, merged=True, environment=environment)
    except OSError as error:
        raise ToolMissing(f"cannot run {command[0]}: {error.strerror or error}") from error
    return ended.status, ended.output.decode("utf-8", "replace")


def _first_error(log: str, status: int) -> str:
    for line in log.splitlines():
        if "error:" in line or "undefined reference" in line:
            return line.strip()
    return f"the compiler ended with status {status}"
