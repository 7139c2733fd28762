# SPDX-License-Identifier: Apache-2.0
"""Kernels and the emulator itself, compiled by g++ and kept in a content-addressed cache.

Each build sees other faults (native/runtime says how):

- ``plain``: wrong results, barriers and warp operations that diverge, what runs into a guard page.
- ``asan``: every access outside of its array, by one byte as by a megabyte; indices past an array's known
  extent, misaligned vectors, and the rest of what C++ leaves undefined.
- ``race``: accesses of two threads or blocks that nothing orders, reads of what nobody wrote, accesses
  outside of any array.
"""

from __future__ import annotations

import functools
import hashlib
import platform
import re
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ..atomic import write_text
from ..compile.artifact import Artifact, Resources
from ..compile.cache import Cache, entry_key
from ..compile.host import compiler_version, find_compiler, run_compiler
from ..errors import InputError, ToolMissing
from .lines import OWN_LINES
from .source import for_host

if TYPE_CHECKING:
    from ..render import KernelSource

NATIVE = Path(__file__).parent / "native"
TIME_LIMIT_S = 300.0
_KERNEL_FLAGS = (
    "-std=c++17",
    "-g1",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-strict-aliasing",
    "-fno-math-errno",
    "-ffp-contract=off",
)
_INCLUDE = (f"-I{NATIVE}/shim/cuda", "-include", f"{NATIVE}/shim/shim.h")
# Only the kernel is instrumented, never the emulator. What the instrumentation calls is in the runner.
_INSTRUMENTATION = {
    "plain": ("-O1",),
    # What is left out finds what AddressSanitizer or a guard page finds too, and costs a third of the time.
    # At -O2 a config was seen to take 7 to 50 % longer: g++ takes more than execution saves.
    "asan": (
        "-O1",
        "-fsanitize=address,undefined",
        "-fno-sanitize=vptr,null,object-size,pointer-overflow",
        "-fno-sanitize-recover=undefined",
    ),
    # At -O2 accesses that race are merged before they are instrumented.
    "race": ("-O1", "-fsanitize=thread", "--param=tsan-distinguish-volatile=1"),
}
BUILDS = tuple(_INSTRUMENTATION)
# A variable that is read before it is set is some number on the CPU; NVRTC may leave out what depends on it.
# At -O1 g++ follows members of structures through inlined functions.
_READS = ("-O1", "-Wuninitialized", "-Wmaybe-uninitialized")
_UNSET = re.compile(r"^(?P<place>\S+:\d+:\d+): warning: (?P<what>.+) (?:is|may be) used uninitialized", re.M)
_RUNTIME_FLAGS = ("-std=c++17", "-O2", "-fno-rtti", "-fno-exceptions")
_ARCH_TEST = re.compile(r"\b__CUDA_ARCH__\b")


def _checked(build: str) -> str:
    if build not in BUILDS:
        raise InputError(f"unknown emulator build {build!r}; known: {', '.join(BUILDS)}")
    return build


@functools.cache
def native_digest() -> str:
    """sha256 (hex) of all of the emulator's own C++."""
    digest = hashlib.sha256()
    for path in sorted(p for p in NATIVE.rglob("*") if p.suffix in (".h", ".cpp")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


@functools.cache
def _machine_flags() -> tuple[str, ...]:
    """What this machine can do that plain x86-64 cannot: without it each fmaf is a call."""
    if platform.machine() != "x86_64":
        return ()
    try:
        flags = Path("/proc/cpuinfo").read_text("utf-8", "replace")
    except OSError:
        return ()
    return ("-mfma",) if re.search(r"^flags\s*:.*\bfma\b", flags, re.MULTILINE) else ()


def _gcc() -> tuple[str, str]:
    """Path and version of g++.

    Raises:
        ToolMissing: There is no C++ compiler, or it is another one.
    """
    version = compiler_version()
    if "clang" in version.lower():
        raise ToolMissing(f"the emulator needs g++, and COLDFORGE_CXX names {version}")
    return find_compiler()[0], version


def _arch_defines(arch: str, text: str) -> tuple[str, ...]:
    if not _ARCH_TEST.search(text):
        return ()
    return (f"-D__CUDA_ARCH__={arch.removeprefix('sm_').rstrip('af')}0",)


def kernel_library(
    source: KernelSource, build: str, cache: Cache, arch: str = "sm_90", template: Path | None = None
) -> Artifact:
    """Compiles the text of one CUDA variant for the CPU.

    Args:
        source: What NVRTC would get.
        build: One of BUILDS.
        cache: Where the library is kept and looked for.
        arch: What `__CUDA_ARCH__` says, where the text asks.
        template: The template's file, for the line of a declaration that is not understood.

    Raises:
        CompileError: g++ refused it: the log is attached.
        DeclarationError: A `__shared__` declaration of a form that is not understood.
        InputError: There is no such build.
        ToolMissing: There is no g++.
    """
    text = for_host(source.text, template)
    path, compiler = _gcc()
    defines = _arch_defines(arch, text)
    flags = (*_KERNEL_FLAGS, "-w", *_machine_flags(), *_INSTRUMENTATION[_checked(build)], *defines)

    def make(work: Path) -> Artifact:
        started = time.perf_counter()
        write_text(work / "kernel.cu", text)
        maps = {work: ".", work.resolve(): ".", NATIVE: OWN_LINES}
        places = [f"-ffile-prefix-map={folder}={name}" for folder, name in maps.items()]
        command = [path, *flags, *places, *_INCLUDE, "-x", "c++", "-c", "kernel.cu", "-o", "kernel.o"]
        run_compiler(command, work, TIME_LIMIT_S, source.name)
        # Linked without the instrumentation's libraries.
        run_compiler([path, "-shared", "kernel.o", "-o", "kernel.so"], work, TIME_LIMIT_S, source.name)
        (work / "kernel.o").unlink()
        return _artifact(work / "kernel.so", source.digest, source.name, compiler, flags, started)

    return cache.get_or_build(entry_key(text, compiler, (*flags, native_digest()), build), make)


def unset_reads(source: KernelSource, template: Path | None = None) -> list[str]:
    """Variables that may be read before they are set, as g++ sees it; it executes nothing.

    Args:
        source: What NVRTC would get.
        template: As of `kernel_library`.

    Returns:
        For each of them the place, by the text's `#line` marks, and its name: "FILE:LINE:COLUMN: x may ...".

    Raises:
        As `kernel_library`.
    """
    path = _gcc()[0]
    text = for_host(source.text, template)
    flags = (*_KERNEL_FLAGS, *_machine_flags(), *_READS, *_arch_defines("sm_90", text))
    with tempfile.TemporaryDirectory(prefix="coldforge-") as folder:
        work = Path(folder)
        write_text(work / "kernel.cu", text)
        command = [path, *flags, *_INCLUDE, "-x", "c++", "-S", "kernel.cu", "-o", "/dev/null"]
        log = run_compiler(command, work, TIME_LIMIT_S, source.name)
    # The last word of what g++ names is the member; the others are its type's.
    said = [(found["place"], re.findall(r"[A-Za-z_]\w*", found["what"])) for found in _UNSET.finditer(log)]
    return list(dict.fromkeys(f"{at}: {name[-1]} may be read before it is set" for at, name in said if name))


def runner(build: str, cache: Cache, extra_flags: tuple[str, ...] = ()) -> Artifact:
    """Compiles the program that runs kernels of `build`.

    Raises:
        CompileError: g++ refused it: the log is attached.
        InputError: There is no such build.
        ToolMissing: There is no g++.
    """
    path, compiler = _gcc()
    sanitizer = ("-fsanitize=address",) if _checked(build) == "asan" else ()
    flags = (*_RUNTIME_FLAGS, f"-DEMULATOR_{build.upper()}", *extra_flags)
    digest = native_digest()

    def make(work: Path) -> Artifact:
        started = time.perf_counter()
        sources = sorted((NATIVE / "runtime").glob("*.cpp"))
        # In one piece: most of the time goes into the library's headers.
        write_text(work / "runner.cpp", "".join(f'#include "{p.name}"\n' for p in sources))
        compile_it = [path, *flags, f"-I{NATIVE}/runtime", "-c", "runner.cpp", "-o", "runner.o"]
        run_compiler(compile_it, work, TIME_LIMIT_S, "emulator")
        link_it = [path, "-rdynamic", *sanitizer, "runner.o", "-o", "runner", "-ldl"]
        run_compiler(link_it, work, TIME_LIMIT_S, "emulator")
        (work / "runner.o").unlink()
        return _artifact(work / "runner", digest, f"emulator runner ({build})", compiler, flags, started)

    return cache.get_or_build(entry_key(digest, compiler, (*flags, *sanitizer), build), make)


def _artifact(
    path: Path, digest: str, name: str, compiler: str, flags: tuple[str, ...], started: float
) -> Artifact:
    seconds = time.perf_counter() - started
    return Artifact(path, digest, name, Resources(), "", compiler, flags, seconds)
