# SPDX-License-Identifier: Apache-2.0
"""A package's folder on the disk: the whole tree is made aside, then takes the old one's place in one step.
What is not coldforge's own is never replaced.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ..atomic import replace_tree, write_bytes
from ..errors import ColdforgeError, InputError

ABANDONED_S = 3600.0
"""How old a half-made tree is of which nobody is the writer any more."""
_BUILD = "_build"
_CACHE = "__pycache__"
_RUNTIME = (".py", ".h")
"""What the manifest does not list: the runtime's files, of this coldforge or an earlier one."""


def check_destination(out_dir: Path) -> None:
    """Refuses to replace a folder that is not a package of ours, or has files that are not.

    Raises:
        InputError: it holds something else.
    """
    if not out_dir.exists():
        return
    if not (out_dir / "manifest.json").is_file():
        ours = {"runtime", "__init__.py", _CACHE}
        there = {p.name for p in out_dir.iterdir()} if out_dir.is_dir() else {""}
        # The code of the runtime alone is a package without kernels yet; any other __init__.py is somebody's
        # own.
        if there and (there - ours or "runtime" not in there):
            raise InputError(f"{out_dir} exists and is not a package of frozen kernels; name another folder")
    written = _written(out_dir)
    for path in sorted(_files(out_dir)):
        if path not in written and not (path.startswith("runtime/") and path.endswith(_RUNTIME)):
            raise InputError(
                f"{out_dir / path} is not coldforge's, and freezing would delete it: move it out of {out_dir}"
            )


def _written(out_dir: Path) -> set[str]:
    """The files that the freeze before wrote, the runtime aside; an earlier coldforge may have had others
    than this one.
    """
    try:
        listed = json.loads((out_dir / "manifest.json").read_bytes())["files"]
    except (OSError, ValueError, RecursionError, TypeError, KeyError):
        listed = ()
    return {"manifest.json", "__init__.py", *(listed if isinstance(listed, dict) else ())}


def _files(out_dir: Path) -> Iterator[str]:
    """The paths of all files in the folder, but caches and builds."""
    for path in out_dir.rglob("*"):
        parts = path.relative_to(out_dir).parts
        if (path.is_symlink() or not path.is_dir()) and _CACHE not in parts and parts[0] != _BUILD:
            yield "/".join(parts)


def write_tree(out_dir: Path, files: dict[str, bytes]) -> bool:
    """Makes the tree beside ``out_dir`` and puts it in its place; False when nothing would change.

    Killed at any moment it leaves the old package or the new one, either with the extensions that were built
    in it (where `replace_tree` can exchange them in one step). Where ``out_dir`` is a link, what it points to
    is replaced.

    Raises:
        ColdforgeError: the files cannot be written; the old package is then as it was.
    """
    if _same(out_dir, files):
        return False
    place = Path(os.path.realpath(out_dir))  # exchanging the link itself would leave its target as it was
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(place)
        aside = Path(tempfile.mkdtemp(prefix=f".{place.name}.new-", dir=place.parent))
    except OSError as error:
        raise ColdforgeError(f"cannot write beside {place}: {error.strerror or error}") from error
    try:
        os.chmod(aside, 0o755)
        for path, data in files.items():
            write_bytes(aside / path, data)
        _take_builds(place, aside)
        replace_tree(aside, place)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return True


def _take_builds(place: Path, aside: Path) -> None:
    """Gives the new tree what was built in the old one, which keeps it: until they are exchanged the old one
    may have to stay.

    Raises:
        ColdforgeError: it cannot be copied.
    """
    old, new = place / _BUILD, aside / _BUILD
    try:
        if old.is_symlink():
            os.symlink(os.readlink(old), new)
        elif old.is_dir():
            work = shutil.ignore_patterns("work-*")  # a build's own, gone when it ends
            shutil.copytree(old, new, symlinks=True, ignore=work, copy_function=_link)
    except (OSError, shutil.Error) as error:
        raise ColdforgeError(f"cannot keep what is built in {place}: {_first(error)}") from error


def _link(source: str, destination: str) -> None:
    """The same file under a second name, so that it costs no space and a build's lock stays one lock; a copy
    where the file system has no second names.
    """
    try:
        os.link(source, destination, follow_symlinks=False)
    except FileNotFoundError:  # a build that is running has just replaced it
        return
    except OSError:
        shutil.copy2(source, destination, follow_symlinks=False)


def _first(error: OSError) -> str:
    """Of what went wrong, the first thing in one line: `shutil.Error` has a list of them."""
    listed = error.args[0] if isinstance(error, shutil.Error) and error.args else None
    return str(listed[0][2] if isinstance(listed, list) and listed else error.strerror or error)


def _remove_abandoned(place: Path) -> None:
    """Removes the trees that killed commands left beside ``place``, but none that may still be written."""
    for aside in place.parent.glob(f".{glob.escape(place.name)}.new-*"):
        with contextlib.suppress(OSError):
            if time.time() - aside.stat().st_mtime > ABANDONED_S:
                shutil.rmtree(aside, ignore_errors=True)


def _same(out_dir: Path, wanted: dict[str, bytes]) -> bool:
    """Whether the folder holds these files and no others (caches and builds aside)."""
    if not out_dir.is_dir() or set(_files(out_dir)) != set(wanted):
        return False
    return all((out_dir / p).is_file() and (out_dir / p).read_bytes() == d for p, d in wanted.items())
