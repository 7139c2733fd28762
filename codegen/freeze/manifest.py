# SPDX-License-Identifier: Apache-2.0
"""Winners as manifest entries and back. An entry and its files hold all that a winner holds."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..catalogue import Catalogue
from ..errors import InputError
from ..plain import parse_json
from .checks import attribute_arguments, check_shapes, problem_of
from .portable import ptx_facts
from .stored import checked_winner
from .units import cubins_by_entry, ptx_by_entry, source_path
from .winner import Winner

FORMAT = 1
_COPIED = ("operator", "family", "template", "operator_digest", "dtype", "precision", "workload_name")
_SORTED = ("target", "specialisation", "workload", "launch", "resources", "measurement")


def to_json(document: Any) -> str:
    """The text of a document: readable, the same for the same content; NaN and infinities become null."""
    return _pretty(_finite(document), "") + "\n"


def _pretty(value: Any, indent: str) -> str:
    """JSON with one line for each member of a mapping, and lists of plain values on one line."""
    inner = indent + "  "
    if isinstance(value, dict) and value:
        members = [f"{inner}{json.dumps(key)}: {_pretty(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(members) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        return "[\n" + ",\n".join(inner + _pretty(item, inner) for item in value) + f"\n{indent}]"
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def _sorted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list | tuple) else value


def entries_of(winners: Sequence[Winner]) -> list[dict[str, Any]]:
    """The entries of winners in the order given. Config and derived values keep their order, all else is
    sorted.
    """
    cubins, portable = cubins_by_entry(winners), ptx_by_entry(winners)
    entries = []
    for winner in winners:
        entry: dict[str, Any] = {"name": winner.name}
        entry |= {name: getattr(winner, name) for name in _COPIED}
        entry |= {name: _sorted(getattr(winner, name)) for name in _SORTED}
        entry["config"] = dict(winner.config)
        entry["derived"] = dict(winner.derived)
        entry["source"] = {
            "name": winner.source_name,
            "file": source_path(winner),
            "sha256": winner.source_digest,
        }
        cubin = cubins.get(winner.name)
        entry["binary"] = {"file": cubin.file, "sha256": winner.binary_digest} if cubin else None
        if winner.portable_only:
            entry["portable_only"] = True
        if (ptx := portable.get(winner.name)) is not None:
            digest = hashlib.sha256(ptx.data).hexdigest()
            entry["ptx"] = {
                "file": ptx.file,
                "sha256": digest,
                **ptx_facts(ptx.data.decode("ascii")).to_dict(),
            }
        entry["compiler"] = winner.compiler
        entry["flags"] = list(winner.flags)
        entry["study"] = winner.study
        entry["verified"] = winner.verified
        entries.append(entry)
    return entries


def checks_of(winner: Winner, catalogue: Catalogue) -> dict[str, Any]:
    """What a package needs beside the entry to check its build: input shapes, and the attributes of the
    call.
    """
    problem = problem_of(winner, catalogue)
    return {"checks": check_shapes(problem), "attributes": attribute_arguments(problem)}


def winner_of_entry(entry: Mapping[str, Any], read: Callable[[str], bytes], where: str) -> Winner:
    """The inverse of ``entries_of``.

    Args:
        read: gives the bytes of a file of the package or bundle.
        where: what a message calls the package or bundle.

    Raises:
        InputError: a field is missing, or a file's content differs from its digest.
    """
    try:
        source = _checked(read, entry["source"], where)
        binary = _checked(read, entry["binary"], where) if entry["binary"] else None
        ptx = _checked(read, entry["ptx"], where).decode("ascii") if entry.get("ptx") else None
        names = (*_COPIED, *_SORTED, "config", "derived", "compiler", "study", "verified", "flags")
        values = {name: entry[name] for name in names}
        values |= {"source_text": source.decode("utf-8"), "binary": binary, "ptx": ptx}
        values["portable_only"] = entry.get("portable_only", False)
        values |= {"source_name": entry["source"]["name"], "source_digest": entry["source"]["sha256"]}
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{where}: malformed entry ({type(error).__name__}: {error})") from None
    return checked_winner(values, where)


def _checked(read: Callable[[str], bytes], reference: Mapping[str, str], where: str) -> bytes:
    if not isinstance(reference, Mapping) or not isinstance(reference.get("file"), str):
        raise TypeError("a file's name is missing")
    data = read(reference["file"])
    if hashlib.sha256(data).hexdigest() != reference["sha256"]:
        raise InputError(
            f"{where}: {reference['file']} differs from its digest {str(reference['sha256'])[:12]}..."
        )
    return data


def load_winners(package: Path) -> list[Winner]:
    """The winners that a package's manifest holds; none when there is no manifest.

    Raises:
        InputError: the manifest is malformed, or a frozen file is missing or was edited.
    """
    path = package / "manifest.json"
    if not path.is_file():
        return []
    try:
        document = parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InputError(f"{path}: not a manifest of format {FORMAT}")

    def read(name: str) -> bytes:
        try:
            file = (package / name).resolve()
            if package.resolve() in file.parents and file.is_file():
                return file.read_bytes()
        except (OSError, ValueError):  # a name that no file can have
            pass
        raise InputError(f"{path}: no file {name[:200]!r}")

    entries = document.get("entries", [])
    if not isinstance(entries, list):
        raise InputError(f"{path}: malformed: entries is no list")
    return [winner_of_entry(entry, read, str(path)) for entry in entries]
