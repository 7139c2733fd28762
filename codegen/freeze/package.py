# SPDX-License-Identifier: Apache-2.0
"""What a package of frozen kernels is made of; `tree` puts it on the disk."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..catalogue import BUILTIN_ROOT, Catalogue, catalogue
from ..dtypes import PRECISIONS, dtype_named
from ..errors import ColdforgeError, InputError
from ..places import placed
from ..reference_file import check_portable
from .checks import problem_of
from .manifest import FORMAT, checks_of, entries_of, to_json
from .namespace import REPOSITORY_NAMESPACE, check_namespace
from .portable import ptx_facts
from .signature import Signature
from .table import cuda_major, render_table
from .tree import check_destination, write_tree
from .tunable import tunable_dtypes
from .units import all_units, cubins_by_entry, entry_units, level_of, ptx_by_entry, source_path
from .winner import Winner
from .wrapper import render_init, render_operator

GENERATED = BUILTIN_ROOT.parent / "generated"
"""The repository's own package."""
_FOLDERS = {
    "kernels": "The frozen sources and binaries, and the C++ table of the extension.",
    "operators": "One file for each frozen operator.",
    "reference": "PyTorch references, copied from the templates.",
}


@dataclass(frozen=True)
class FreezeReport:
    """What was written.

    Attributes:
        folder: the package's folder.
        namespace: of its PyTorch operators.
        entries: names of the entries.
        operators: names of the operators.
        manifest_digest: sha256 of ``manifest.json``.
        changed: whether a file differs from what stood there.
    """

    folder: Path
    namespace: str
    entries: tuple[str, ...]
    operators: tuple[str, ...]
    manifest_digest: str
    changed: bool


def freeze(
    winners: Sequence[Winner], out_dir: Path, namespace: str, *, declared: Catalogue | None = None
) -> FreezeReport:
    """Writes the package ``out_dir`` with exactly these winners.

    The same winners in any order give the same bytes. A build folder that stands in ``out_dir`` is kept.

    Args:
        out_dir: the package's folder; what coldforge wrote there is replaced.
        namespace: of its PyTorch operators, and of nothing else in one process.
        declared: the declarations; the built-in ones when not given.

    Raises:
        InputError: a winner that is not declared (any more), two of the same key, a reference that imports
            files of its own, a bad namespace, or a file in ``out_dir`` that is not coldforge's.
        ColdforgeError: the files cannot be written.
    """
    check_namespace(namespace)
    check_destination(out_dir)
    known = declared or catalogue()
    ordered = sorted(winners, key=lambda w: (w.operator, w.kind, w.arch, w.device, w.name))
    for winner in ordered:
        check_winner(winner, known)
    if len({w.key for w in ordered}) != len(ordered):
        raise InputError("two winners have the same key; merge them before they are frozen")
    signatures = [Signature(known.operator(name)) for name in sorted({w.operator for w in ordered})]
    for signature in signatures:
        with placed(signature.family.folder):
            check_portable(signature.family.reference_file)
    files = _package_files(ordered, signatures, namespace, known)
    manifest = _manifest(ordered, signatures, namespace, known, files)
    changed = write_tree(out_dir, {**files, **_runtime_files(namespace), "manifest.json": manifest})
    return FreezeReport(
        folder=out_dir,
        namespace=namespace,
        entries=tuple(w.name for w in ordered),
        operators=tuple(s.operator.name for s in signatures),
        manifest_digest=hashlib.sha256(manifest).hexdigest(),
        changed=changed,
    )


def check_winner(winner: Winner, known: Catalogue) -> None:
    """Refuses a winner that cannot be frozen.

    Raises:
        InputError: with the reason.
    """
    operator = known.operator(winner.operator)
    if winner.operator_digest != operator.digest:
        raise InputError(
            f"entry {winner.name} was tuned for another declaration of {winner.operator}; tune it again"
        )
    if hashlib.sha256(winner.source_text.encode()).hexdigest() != winner.source_digest:
        raise InputError(
            f"entry {winner.name}: the source differs from its digest {winner.source_digest[:12]}..."
        )
    dtype_named(winner.dtype)
    if winner.precision not in PRECISIONS:
        raise InputError(f"entry {winner.name}: unknown precision {winner.precision!r}")
    level_of(winner.arch)
    problem_of(winner, known)
    binary, portable = winner.binary is not None, winner.portable_only
    if binary != (winner.kind == "cuda" and not portable) or (portable and winner.ptx is None):
        raise InputError(
            f"entry {winner.name}: a cuda winner has a binary, a portable one PTX alone, a cpu winner none"
        )
    if winner.ptx is not None:
        ptx_facts(winner.ptx, f"entry {winner.name}")
    for refuses in (source_path, entry_units, cuda_major):
        refuses(winner)
    missing = [n for n in Signature(operator).fixed_names if n not in winner.specialisation]
    if missing:
        raise InputError(f"entry {winner.name}: the specialisation lacks {missing[0]}")


def _package_files(
    winners: Sequence[Winner], signatures: Sequence[Signature], namespace: str, known: Catalogue
) -> dict[str, bytes]:
    """Every written file but the manifest, by path."""
    texts = {"__init__.py": render_init(signatures, namespace)}
    texts |= {f"{folder}/__init__.py": _folder_init(summary) for folder, summary in _FOLDERS.items()}
    if signatures:
        texts["kernels/table.cpp"] = render_table(signatures, winners, namespace)
        reduces = any(step.is_reduction for s in signatures for step in s.operator.epilogue)
        for name in ("pointwise.py", "reductions.py") if reduces else ("pointwise.py",):
            texts[f"reference/{name}"] = _copied(BUILTIN_ROOT / name, f"templates/{name}")
    for signature in signatures:
        family = signature.family
        texts[f"operators/{signature.operator.name}.py"] = render_operator(
            signature, tunable_dtypes(signature.operator, known)
        )
        texts[f"reference/{family.name}.py"] = _copied(
            family.reference_file, f"{family.folder.name}/{family.reference_file.name}"
        )
    texts |= {source_path(w): w.source_text for w in winners}
    files = {path: text.encode("utf-8") for path, text in texts.items()}
    for images in (cubins_by_entry(winners), ptx_by_entry(winners)):
        files |= {image.file: image.data for image in images.values()}
    return dict(sorted(files.items()))


def _manifest(
    winners: Sequence[Winner],
    signatures: Sequence[Signature],
    namespace: str,
    known: Catalogue,
    files: dict[str, bytes],
) -> bytes:
    document = {
        "format": FORMAT,
        "namespace": namespace,
        "operators": {
            s.operator.name: {"family": s.family.name, "schema": s.schema, "digest": s.operator.digest}
            for s in signatures
        },
        "entries": [
            {**entry, **checks_of(winner, known)}
            for entry, winner in zip(entries_of(winners), winners, strict=True)
        ],
        "units": [unit.to_dict() for unit in all_units(winners)],
        "files": {path: hashlib.sha256(data).hexdigest() for path, data in files.items()},
    }
    return to_json(document).encode("utf-8")


def _folder_init(summary: str) -> str:
    return (
        "# SPDX-License-Identifier: Apache-2.0\n"
        "# Generated by `coldforge freeze`; do not edit.\n"
        f'"""{summary}"""\n'
    )


def _copied(path: Path, name: str) -> str:
    """A Python file with a line that says where it comes from, below its own first comment: that may be a
    licence, and a file without one is given none."""
    text = path.read_text(encoding="utf-8")
    first, _, rest = text.partition("\n")
    note = f"# Copied by `coldforge freeze` from {name}; do not edit.\n"
    return f"{first}\n{note}{rest}" if first.startswith("#") else note + text


def _runtime_files(namespace: str) -> dict[str, bytes]:
    """The hand-written runtime, with its one name replaced."""
    root = GENERATED / "runtime"
    files = {}
    for path in sorted(root.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            files[f"runtime/{path.relative_to(root)}"] = path.read_bytes()
    line = f'NAMESPACE = "{REPOSITORY_NAMESPACE}"'.encode()
    source = files["runtime/namespace.py"]
    if source.count(line) != 1:
        raise ColdforgeError("runtime/namespace.py does not set NAMESPACE once")
    files["runtime/namespace.py"] = source.replace(line, f'NAMESPACE = "{namespace}"'.encode())
    return files
