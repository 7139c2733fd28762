# SPDX-License-Identifier: Apache-2.0
"""One file that carries winners, with their sources, cubins and study records, to another checkout.

A zip archive: ``index.json`` with the entries, the studies and the digest of every member, then the
members. The same winners give the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..atomic import write_bytes
from ..errors import InputError
from ..plain import parse_json
from .manifest import entries_of, to_json, winner_of_entry
from .units import cubins_by_entry, ptx_by_entry, source_path
from .winner import Winner

FORMAT = 1
INDEX = "index.json"
INDEX_DIGEST = "index.sha256"
MAX_BYTES = 256 * 1024 * 1024
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Bundle:
    """What a bundle holds.

    Attributes:
        winners: the frozen entries' contents.
        studies: study name -> its record, as the tuner gave it.
    """

    winners: tuple[Winner, ...]
    studies: Mapping[str, Any] = field(default_factory=dict, hash=False)


def write_bundle(path: Path, winners: Sequence[Winner], studies: Mapping[str, Any] | None = None) -> str:
    """Writes the bundle; returns the file's sha256.

    Args:
        studies: study name -> plain JSON.

    Raises:
        InputError: there is nothing to carry.
        ColdforgeError: the file cannot be written.
    """
    if not winners:
        raise InputError("there are no winners to bundle; tune an operator first")
    ordered = sorted(winners, key=lambda w: w.key)
    members = {source_path(w): w.source_text.encode("utf-8") for w in ordered}
    for images in (cubins_by_entry(ordered), ptx_by_entry(ordered)):
        members |= {image.file: image.data for image in images.values()}
    records = studies or {}
    members |= {_study_path(name): to_json(records[name]).encode("utf-8") for name in sorted(records)}
    index = to_json(
        {
            "format": FORMAT,
            "entries": entries_of(ordered),
            "studies": {name: _study_path(name) for name in sorted(records)},
            "files": {name: hashlib.sha256(data).hexdigest() for name, data in sorted(members.items())},
        }
    ).encode("utf-8")
    members = {
        INDEX: index,
        INDEX_DIGEST: hashlib.sha256(index).hexdigest().encode(),
        **dict(sorted(members.items())),
    }
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in members.items():
            entry = zipfile.ZipInfo(name, date_time=_EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data)
    write_bytes(path, stream.getvalue())
    return hashlib.sha256(stream.getvalue()).hexdigest()


def _study_path(name: str) -> str:
    return f"studies/{hashlib.sha256(name.encode()).hexdigest()[:16]}.json"


def read_bundle(path: Path) -> Bundle:
    """Reads a bundle and checks every member against its digest.

    Raises:
        InputError: the file is missing, no bundle, of another format, damaged, or differs from its digests.
    """
    members = _members(path)
    index = members.get(INDEX)
    if index is None or INDEX_DIGEST not in members:
        raise InputError(f"{path} is not a coldforge bundle")
    if hashlib.sha256(index).hexdigest().encode() != members[INDEX_DIGEST].strip():
        raise InputError(f"{path}: {INDEX} differs from its digest")
    try:
        document = parse_json(index)
        version, entries = document["format"], document["entries"]
        studies, files = dict(document["studies"]), dict(document["files"])
        if not isinstance(entries, list):
            raise TypeError
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{path}: malformed {INDEX}") from None
    if version != FORMAT:
        raise InputError(f"{path} has bundle format {version!r}; this coldforge reads format {FORMAT}")

    def read(name: str) -> bytes:
        if not isinstance(name, str) or name not in members or name not in files:
            raise InputError(f"{path}: the bundle lacks {name!r}")
        if hashlib.sha256(members[name]).hexdigest() != files[name]:
            raise InputError(f"{path}: {name} differs from its digest {str(files[name])[:12]}...")
        return members[name]

    for name in files:
        read(name)
    winners = tuple(winner_of_entry(entry, read, str(path)) for entry in entries)
    try:
        return Bundle(winners, {name: parse_json(read(member)) for name, member in studies.items()})
    except ValueError as error:
        raise InputError(f"{path}: malformed study ({error})") from None


def _members(path: Path) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(path) as archive:
            members = {}
            size = sum(entry.file_size for entry in archive.infolist())
            if size > MAX_BYTES:
                raise InputError(f"{path}: its files have {size} bytes; that is no bundle")
            for entry in archive.infolist():
                members[entry.filename] = archive.read(entry)
            return members
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    except (zipfile.BadZipFile, zipfile.LargeZipFile, EOFError, ValueError, NotImplementedError) as error:
        raise InputError(f"{path} is no bundle, or is damaged: {error}") from None
    except Exception as error:  # zlib.error has no common base with the above
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is damaged: {error}") from None
