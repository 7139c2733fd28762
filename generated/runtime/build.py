# SPDX-License-Identifier: Apache-2.0
"""Builds the package's extension with ninja and a C++ compiler. `python -m <package>.runtime` runs it by
hand.

The result stands in ``_build/<first 16 of the build key>/<namespace>.so``, so a changed manifest or
header never meets an old extension. It appears there by a rename, complete or not at all.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from . import lock
from .extension import digest_path, is_whole
from .manifest import Manifest, PackageError, is_installed
from .namespace import NAMESPACE
from .ninja import build_file

TIME_LIMIT_S = 900.0
RECORD = "verified.json"
"""Beside the extension: which of its variants were found right on this machine."""
PACKAGE = __name__.removesuffix(".runtime.build")


def build_folder(manifest: Manifest) -> Path:
    """Where the extension of this manifest is built."""
    return manifest.root / "_build" / manifest.build_key[:16]


def extension_path(manifest: Manifest) -> Path:
    """Where the extension of this manifest stands once it is built."""
    return build_folder(manifest) / f"{NAMESPACE}.so"


def by_hand() -> str:
    """The command that builds this package."""
    return "coldforge build" if PACKAGE == "coldforge.generated" else f"python -m {PACKAGE}.runtime"


def why_not_automatically(root: Path) -> str:
    """Why a first call may not build the extension; empty when it may."""
    if os.environ.get("COLDFORGE_BUILD", "") == "0":
        return f"its extension is not built and COLDFORGE_BUILD=0 forbids building it; run `{by_hand()}`"
    if not is_installed(root):
        return ""
    if any(root.glob(f"_build/*/{NAMESPACE}.so")):
        return "its extension is damaged, or belongs to other files; install the package again"
    return "it is installed without an extension, and an installed package never builds one"


def build(manifest: Manifest, *, again: bool = False, quiet: bool = False) -> Path:
    """Builds the extension unless it is there and whole; one process at a time.

    Args:
        again: even when it is.
        quiet: say nothing on stderr.

    Returns:
        The extension's path.

    Raises:
        PackageError: a file differs from the manifest, a tool is missing, the compiler failed, or
            nothing can be written there.
    """
    target = extension_path(manifest)
    if not again and is_whole(target, manifest.build_key):
        return target
    try:
        with lock.exclusive(
            manifest.root / "_build" / "lock", lambda: _say("waiting for another build", quiet)
        ):
            if again or not is_whole(target, manifest.build_key):
                _say(f"building the frozen kernels of {PACKAGE} ...", quiet)
                _build_locked(manifest, target)
    except OSError as error:
        raise PackageError(f"cannot build in {manifest.root / '_build'}: {error.strerror or error}") from None
    return target


def _build_locked(manifest: Manifest, target: Path) -> None:
    manifest.check_files()
    folder = target.parent
    # A killed build may have left compilers running: each build works in a folder of its own, and removes
    # the others.
    for left in folder.glob("work-*"):
        shutil.rmtree(left, ignore_errors=True)
    work = folder / f"work-{os.getpid()}"
    work.mkdir(parents=True)
    try:
        text = build_file(manifest, _compiler(), "extension.so", platform.machine())
        (work / "build.ninja").write_text(text, encoding="utf-8")
        _run([_ninja(), "-C", str(work), *_jobs()], folder / "build.log")
        (folder / RECORD).unlink(missing_ok=True)  # another build is other machine code
        digest = hashlib.sha256((work / "extension.so").read_bytes()).hexdigest()
        digest_path(work / "extension.so").write_text(f"{digest}\n", encoding="ascii")
        os.replace(digest_path(work / "extension.so"), digest_path(target))
        os.replace(work / "extension.so", target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _jobs() -> list[str]:
    jobs = os.environ.get("COLDFORGE_JOBS", "")
    return [f"-j{jobs}"] if jobs.isascii() and jobs.isdigit() and int(jobs) > 0 else []


def _compiler() -> str:
    wanted = os.environ.get("COLDFORGE_CXX") or "g++"
    path = shutil.which(wanted)
    if path is None:
        raise PackageError(
            f"no C++ compiler {wanted!r} on PATH; install g++ or name another in COLDFORGE_CXX"
        )
    return path


def _ninja() -> str:
    try:
        import ninja

        name = str(Path(ninja.BIN_DIR) / "ninja")
    except ImportError:
        name = "ninja"
    path = shutil.which(name) or shutil.which("ninja")
    if path is None:
        raise PackageError("ninja is not installed; run `pip install ninja`")
    return path


def _run(command: list[str], log_file: Path) -> None:
    """Runs ninja in a process group of its own, so that no compiler outlives a time limit or an interrupt."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "LC_ALL": "C"},
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=TIME_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise PackageError(f"the build ran past {TIME_LIMIT_S:g} s and was ended") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode:
        log = output.decode("utf-8", "replace")
        log_file.write_text(log, encoding="utf-8")
        first = next((line for line in log.splitlines() if "error" in line.lower()), "ninja failed")
        raise PackageError(f"building the frozen kernels failed: {first.strip()} (log: {log_file})")


def _say(text: str, quiet: bool) -> None:
    if not quiet:
        print(f"coldforge: {text}", file=sys.stderr, flush=True)
