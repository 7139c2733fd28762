# SPDX-License-Identifier: Apache-2.0
"""CUDA source -> cubin with NVRTC: no toolkit and no GPU needed.

NVRTC and the CUDA headers come from the pip packages that a CUDA build of PyTorch depends on, or from the
extras of this package; cuda-bindings finds the library. It compiles straight to machine code for one
architecture, and its log carries the assembler's resource report.
"""

from __future__ import annotations

import functools
import importlib
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..atomic import write_bytes, write_text
from ..errors import CompileError, ToolMissing
from .artifact import Artifact, Resources
from .cache import Cache, entry_key
from .cubin import kernels, machine_code_bytes, machine_code_digest
from .ptxas_log import first_error, report_for

if TYPE_CHECKING:
    from ..render import KernelSource
    from ..target import Target

FINISH = "coldforge_finish"
"""The second kernel, which a source may define."""
_HINT = "install it with: pip install 'coldforge[cuda]' (or coldforge[cuda12] for an older driver)"
# Folders of the runtime wheel's headers under a site-packages folder, CUDA 13's and CUDA 12's.
_HEADER_FOLDERS = ("nvidia/cu13/include", "nvidia/cuda_runtime/include")
_SYSTEM_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<", re.MULTILINE)
_OWN_ARCH = re.compile(r"^// for (sm_\w+a)$", re.MULTILINE)
_VERSION = re.compile(r"^#define\s+CUDART_VERSION\s+(\d+)", re.MULTILINE)


def compile_flags(arch: str, text: str = "") -> tuple[str, ...]:
    """The flags that decide the machine code for ``arch`` ("sm_90"), in order.

    A text with a line ``// for sm_90a`` uses instructions that no later architecture has; its cubin still is
    one for sm_90.
    """
    own = own_arch(text)
    exact = own if own and own[:-1] == arch else arch
    return (f"--gpu-architecture={exact}", "-std=c++17", "--ptxas-options=-v")


def own_arch(text: str) -> str | None:
    """The architecture whose own instructions a text uses, as it says itself (``sm_90a``); None for one that
    every newer architecture can run too.
    """
    found = _OWN_ARCH.search(text)
    return found[1] if found else None


@functools.cache
def _library() -> Any:
    """The NVRTC bindings with the library loaded.

    Raises:
        ToolMissing: The bindings or the library are not installed.
    """
    try:
        nvrtc = importlib.import_module("cuda.bindings.nvrtc")  # compiled, without type stubs
    except ImportError as error:
        raise ToolMissing(f"NVRTC needs the package cuda-bindings ({error}); {_HINT}") from error
    try:
        nvrtc.nvrtcVersion()
    except Exception as error:  # the finder's own exceptions differ between releases; all mean "not there"
        raise ToolMissing(f"the NVRTC library cannot be loaded ({_line(error)}); {_HINT}") from error
    return nvrtc


def _line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]


def _checked(answer: tuple[Any, ...]) -> Any:
    """The value of a binding's answer (status, value), whose call cannot fail on sound arguments."""
    status, *values = answer
    if int(status) != 0:
        raise CompileError(f"NVRTC: {getattr(status, 'name', status)}")
    return values[0] if len(values) == 1 else values


def compiler_version() -> str:
    """Name and version of the compiler: "nvrtc 13.5".

    Raises:
        ToolMissing: There is none.
    """
    major, minor = _checked(_library().nvrtcVersion())
    return f"nvrtc {major}.{minor}"


@functools.cache
def header_folder() -> Path:
    """The folder with cuda_fp16.h and its like.

    Raises:
        ToolMissing: The package nvidia-cuda-runtime is not installed.
    """
    folders = [Path(base) / name for base in sys.path if base for name in _HEADER_FOLDERS]
    try:
        from cuda import pathfinder

        found = getattr(pathfinder, "find_nvidia_header_directory", lambda _name: None)("cudart")
        folders += [Path(found)] if found else []
    except ImportError:
        pass
    for folder in folders:
        if (folder / "cuda_fp16.h").is_file():
            return folder
    raise ToolMissing(f"no CUDA headers (cuda_fp16.h) are installed; {_HINT}")


@functools.cache
def _header_version() -> str:
    text = (header_folder() / "cuda_runtime_api.h").read_text("utf-8", "replace")
    match = _VERSION.search(text)
    return match[1] if match else "unknown"


def compile_cuda(source: KernelSource, target: Target, cache: Cache) -> Artifact:
    """Compiles one CUDA kernel to a cubin for ``target.arch``.

    Args:
        source: The self-contained text; only headers of the CUDA runtime package may remain included.
        target: A cuda target; no such device need be present.
        cache: Where the cubin is kept and looked for.

    Raises:
        CompileError: NVRTC or the assembler refused the source; the log is attached.
        ToolMissing: NVRTC, or headers that the source includes, are not installed.
    """
    compiler = compiler_version()
    flags = compile_flags(target.arch, source.text)
    decisive, options = flags, _options(source.text, target.arch)
    if _SYSTEM_INCLUDE.search(source.text):  # the headers' content decides too, their place does not
        decisive = (*flags, f"cudart headers {_header_version()}")

    def build(work: Path) -> Artifact:
        started = time.perf_counter()
        write_text(work / "kernel.cu", source.text)
        cubin, _, log = _compile(source.text, source.name, options)
        write_bytes(work / "kernel.cubin", cubin)
        write_text(work / "log.txt", log)
        return Artifact(
            path=work / "kernel.cubin",
            source_digest=source.digest,
            name=source.name,
            resources=_resources(source, cubin, log),
            code_digest=machine_code_digest(cubin),
            compiler=compiler,
            flags=flags,
            seconds=time.perf_counter() - started,
        )

    return cache.get_or_build(entry_key(source.text, compiler, decisive, target.arch), build)


def portable_ptx(text: str, name: str, arch: str) -> str:
    """PTX of a source for ``arch`` ("sm_80") and every newer one. It went through the assembler of ``arch``:
    PTX alone is not looked at before a driver does.

    Args:
        name: what a message calls it.

    Raises:
        CompileError: NVRTC or the assembler refused the source; the log is attached.
        ToolMissing: NVRTC, or headers that the source includes, are not installed.
    """
    _, ptx, _ = _compile(text, name, _options(text, arch))
    return ptx.decode("ascii").rstrip("\0 \n") + "\n"


def _options(text: str, arch: str) -> tuple[str, ...]:
    options = (*compile_flags(arch, text), *_uncached(compiler_version()))
    return (*options, f"-I{header_folder()}") if _SYSTEM_INCLUDE.search(text) else options


def _uncached(compiler: str) -> tuple[str, ...]:
    """The option that keeps NVRTC's own cache out, for versions that have one (12.9 and newer).

    On a machine with a driver, a source that was compiled before would come out of it without a log, and so
    without the resource report. It does not touch the machine code.
    """
    major, minor = (int(number) for number in compiler.removeprefix("nvrtc ").split("."))
    return ("--no-cache",) if (major, minor) >= (12, 9) else ()


def _compile(text: str, name: str, options: tuple[str, ...]) -> tuple[bytes, bytes, str]:
    """Returns the cubin, its PTX and the log."""
    nvrtc = _library()
    program = _checked(nvrtc.nvrtcCreateProgram(text.encode(), b"kernel.cu", 0, [], []))
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        log = _filled(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
        report = log.decode("utf-8", "replace").rstrip("\0 \n")
        if int(status) != 0:
            raise CompileError(f"{name}: {first_error(report)}", report)
        cubin = _filled(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
        return cubin, _filled(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program), report
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _filled(size: Any, fill: Any, program: Any) -> bytes:
    buffer = b" " * _checked(size(program))
    _checked((*fill(program, buffer), None))
    return buffer


def _resources(source: KernelSource, cubin: bytes, log: str) -> Resources:
    """What the more demanding of the source's two kernels uses: they do not run at once."""
    first, second = report_for(log, source.symbol), report_for(log, FINISH)
    if first is None or source.symbol not in kernels(cubin):
        raise CompileError(f"{source.name}: the source defines no kernel {source.symbol}", log)
    both = (first,) if second is None else (first, second)
    return Resources(
        registers=max(report.registers for report in both),
        spill_store_bytes=max(report.spill_store_bytes for report in both),
        spill_load_bytes=max(report.spill_load_bytes for report in both),
        shared_bytes=max(report.shared_bytes for report in both),
        stack_bytes=max(report.stack_bytes for report in both),
        code_bytes=machine_code_bytes(cubin),
    )
