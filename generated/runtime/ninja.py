# SPDX-License-Identifier: Apache-2.0
"""The text of the extension's build.ninja: one compile for each frozen cpu source and level, one for the
table, a link.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from .manifest import Manifest

# The oldest PyTorch whose stable interface is used; newer ones keep it.
TORCH_TARGET_VERSION = "0x020a000000000000"
_TABLE_FLAGS = (
    "-std=c++17 -O2 -fPIC -fvisibility=hidden -fvisibility-inlines-hidden -Wall -Wno-unused-function"
    f" -DTORCH_TARGET_VERSION={TORCH_TARGET_VERSION}"
)
# What messages of the library call the folders of the machine that builds: these are no use elsewhere, and
# without them the same sources give the same library wherever they lie.
_PACKAGE, _TORCH = "package", "torch"
_LINK_FLAGS = "-shared -Wl,--no-undefined -Wl,--build-id=none -Wl,-z,relro,-z,now"


def build_file(manifest: Manifest, compiler: str, output: str, machine: str) -> str:
    """The build description.

    Args:
        compiler: path of the C++ compiler.
        output: the library's file name in the build folder.
        machine: as ``platform.machine()`` names it: units for others are left out.
    """
    torch_root = Path(torch.__file__).resolve().parent
    root = manifest.root
    includes = [root / "runtime" / "native", torch_root / "include"]
    units = [unit for unit in manifest.data["units"] if unit["machine"] == machine]
    table_flags = f'{_TABLE_FLAGS} -DCOLDFORGE_BUILD_KEY=\\"{manifest.build_key}\\" -I{_shell(root)}'
    lines = [
        "ninja_required_version = 1.5",
        f"cxx = {_shell(compiler)}",
        f"maps = {_map(root, _PACKAGE)} {_map(torch_root, _TORCH)}",
        "rule compile",
        "  command = $cxx $flags $maps -MMD -MF $out.d -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "  description = compile $out",
        "rule link",
        f"  command = $cxx {_LINK_FLAGS} $in -o $out -L{_shell(torch_root / 'lib')} -ltorch_cpu -ldl",
        "  description = link $out",
        "",
    ]
    objects = ["table.o"]
    images = [root / name for name in manifest.data["files"] if name.endswith((".cubin", ".ptx"))]
    embedded = " ".join(map(_path, images))
    lines.append(f"build table.o: compile {_path(root / 'kernels' / 'table.cpp')} | {embedded}".rstrip(" |"))
    lines.append("  flags = " + table_flags + "".join(f" -isystem {_shell(path)}" for path in includes))
    for unit in units:
        objects.append(f"{unit['symbol']}.o")
        lines += _unit(root, unit)
    lines.append(f"build {output}: link {' '.join(objects)}")
    lines.append(f"default {output}")
    return "\n".join(lines) + "\n"


def _unit(root: Path, unit: dict[str, Any]) -> list[str]:
    # Nothing of torch is included: what a variant includes must not be shared with another level's copy.
    flags = " ".join(_shell(flag) for flag in unit["flags"])
    return [
        f"build {unit['symbol']}.o: compile {_path(root / unit['source'])}",
        f"  flags = {flags} -Dcoldforge_kernel={unit['symbol']} -Dcoldforge_finish={unit['symbol']}_finish",
    ]


def _map(folder: Path, name: str) -> str:
    return _shell(f"-ffile-prefix-map={folder}={name}")


def _path(path: Path) -> str:
    """A path as ninja reads it."""
    return str(path).replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


def _shell(text: Path | str) -> str:
    """A word of a command, as the shell that ninja starts reads it."""
    quoted = "'" + str(text).replace("'", "'\\''") + "'"
    plain = str(text).replace("/", "").replace("-", "").replace("_", "").replace(".", "")
    return (str(text) if plain.isalnum() and plain.isascii() else quoted).replace("$", "$$")
