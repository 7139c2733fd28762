# SPDX-License-Identifier: Apache-2.0
"""A built package as a wheel: it is installed where there is no compiler, for any Python and CUDA.

The extension asks nothing of Python (it is C++ on PyTorch's stable interface), so one file serves every
version; its platform tag follows from the symbol versions that the library needs.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import platform
import re
import zipfile
from pathlib import Path

from ..atomic import write_bytes
from ..compile.elf import needed_versions
from ..errors import ColdforgeError

REQUIRES_PYTHON = ">=3.10"
REQUIRES_TORCH = "torch>=2.10"
VERSION = "0.1.0"
_EPOCH = (1980, 1, 1, 0, 0, 0)
# libstdc++'s GLIBCXX_3.4.n comes with distributions of at least this glibc 2.m (PEP 600's policies).
_GLIBCXX = ((25, 28), (28, 31), (29, 34), (30, 35), (33, 39))
_OLDEST_GLIBC = 17
_KEPT = ("{name}.so", "{name}.so.sha256", "verified.json")


def write_wheel(package: Path, library: Path, out_dir: Path) -> Path:
    """Writes the wheel of a built package; the same files give the same bytes.

    Args:
        package: the package's folder.
        library: its extension, as its build names it; older builds may stand beside it.
        out_dir: where the wheel goes; older wheels that this made of the package are removed from there.

    Returns:
        The wheel's path.

    Raises:
        ColdforgeError: nothing can be written there, or the extension is not in the package.
    """
    name = package.name
    paths = _paths(package, library)
    tag = f"py3-none-{platform_tag(library.read_bytes(), platform.machine())}"
    digest = hashlib.sha256((package / "manifest.json").read_bytes()).hexdigest()[:8]
    version = f"{VERSION}+{digest}"
    info = f"{name}-{version}.dist-info"
    files = {f"{name}/{path}": (package / path).read_bytes() for path in paths}
    files[f"{info}/METADATA"] = _metadata(package, version).encode()
    files[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: coldforge\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    )
    rows = [f"{path},sha256={_digest(data)},{len(data)}\n" for path, data in sorted(files.items())]
    record = f"{info}/RECORD"
    files[record] = "".join([*rows, f"{record},,\n"]).encode()
    target = out_dir / f"{name}-{version}-{tag}.whl"
    try:
        write_bytes(target, _zipped(files, record))
        for old in out_dir.iterdir():
            if old != target and _is_own(old.name, name):
                old.unlink()
    except OSError as error:
        raise ColdforgeError(f"cannot write {target}: {error.strerror or error}") from error
    return target


def _is_own(file: str, name: str) -> bool:
    """Whether `write_wheel` gave a wheel of that package this name. Others begin with it too: a release of
    somebody's, or ``<name>-tools``.
    """
    pattern = rf"{re.escape(name)}-{re.escape(VERSION)}\+[0-9a-f]{{8}}-py3-none-[a-z0-9_]+\.whl"
    return re.fullmatch(pattern, file) is not None


def platform_tag(library: bytes, machine: str) -> str:
    """The oldest ``manylinux`` tag on whose systems the library loads.

    Args:
        library: an ELF file.
        machine: as ``platform.machine()`` names it.
    """
    minor = _OLDEST_GLIBC
    for version in needed_versions(library):
        if found := re.match(r"GLIBC_2\.(\d+)", version):
            minor = max(minor, int(found[1]))
        elif found := re.match(r"GLIBCXX_3\.4\.(\d+)", version):
            minor = max(minor, _glibc_with(int(found[1])))
    return f"manylinux_2_{minor}_{machine}"


def _glibc_with(glibcxx: int) -> int:
    """The oldest glibc 2.x of systems whose libstdc++ has GLIBCXX_3.4.``glibcxx``."""
    return next((glibc for last, glibc in _GLIBCXX if glibcxx <= last), _GLIBCXX[-1][1] + 1)


def _paths(package: Path, library: Path) -> list[str]:
    """The files of the package that its wheel has: of its builds, the one with this extension.

    Raises:
        ColdforgeError: the extension is none of the package's, or has no digest beside it; without either an
            installed package answers by its reference alone.
    """
    build = f"_build/{library.parent.name}"
    kept = [f"{build}/{text.format(name=package.name)}" for text in _KEPT]
    try:
        same = os.path.samefile(package / kept[0], library)  # either may be named by way of a link
    except OSError:
        same = False
    if not same or not (package / kept[1]).is_file():
        raise ColdforgeError(f"{library} is not a whole extension in {package}: the wheel would have none")
    found = [path for path in kept if (package / path).is_file()]
    for path in package.rglob("*"):
        inside = path.relative_to(package)
        if path.is_file() and "__pycache__" not in inside.parts and inside.parts[0] != "_build":
            found.append(str(inside))
    return sorted(found)


def _metadata(package: Path, version: str) -> str:
    operators = ", ".join(json.loads((package / "manifest.json").read_bytes())["operators"])
    return (
        f"Metadata-Version: 2.1\nName: {package.name}\nVersion: {version}\n"
        f"Summary: Frozen kernels for PyTorch: {operators}\n"
        f"Requires-Python: {REQUIRES_PYTHON}\nRequires-Dist: {REQUIRES_TORCH}\n"
    )


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _zipped(files: dict[str, bytes], last: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in [*sorted(set(files) - {last}), last]:
            entry = zipfile.ZipInfo(name, date_time=_EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if name.endswith(".so") else 0o100644) << 16
            archive.writestr(entry, files[name])
    return stream.getvalue()
