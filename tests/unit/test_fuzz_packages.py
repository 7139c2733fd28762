# SPDX-License-Identifier: Apache-2.0
"""Damaged and altered bundles, manifests, ledgers and device records: one line, nothing half written; a
package whose manifest is damaged answers by its reference."""

from __future__ import annotations

import contextlib
import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import coldforge.codegen.freeze
import pytest
from coldforge.codegen.errors import ColdforgeError, InputError
from coldforge.codegen.freeze import Winner, freeze, write_bundle
from coldforge.codegen.freeze import bundle as bundles
from coldforge.codegen.freeze.manifest import load_winners
from coldforge.codegen.target import cpu_target
from coldforge.generated.runtime import manifest as runtime_manifest
from coldforge.tuner import floor, storage
from coldforge.tuner.check.ledger import claims
from fuzz import accepted_or_refused, changed, hostile_values, paths_of, profile, refused
from hypothesis import given
from hypothesis import strategies as st
from optuna.storages import InMemoryStorage

WinnerFactory = Callable[..., Winner]
RECORD: dict[str, Any] = {
    "format": 1,
    "attributes": {"about": {"operator": "conv2d_mish"}},
    "trials": [
        {
            "state": "COMPLETE",
            "value": 1.0,
            "params": {"template": "direct"},
            "distributions": {
                "template": '{"name": "CategoricalDistribution", "attributes": {"choices": ["direct"]}}'
            },
            "attributes": {"outcome": "ok"},
            "started": "2026-01-01T00:00:00",
            "ended": "2026-01-01T00:00:01",
        }
    ],
}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, naive_winner: WinnerFactory) -> Path:
    """A bundle with a winner and a study."""
    path = tmp_path_factory.mktemp("bundle") / "whole.zip"
    write_bundle(path, [naive_winner()], {"a study": RECORD})
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A folder of this test's own: generated/, a home, and where packages go."""
    folder = tmp_path_factory.mktemp("place")
    freeze([], folder / "generated", "coldforge")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coldforge.codegen.freeze, "GENERATED", folder / "generated")
        patch.setenv("COLDFORGE_HOME", str(folder / "home"))
        memory = InMemoryStorage()  # opening a database file takes far longer than all else
        patch.setattr(storage, "open_storage", lambda *arguments, **named: memory)
        yield folder


def _take(place: Path, content: bytes, codes: tuple[int, ...] = (0, 1, 2)) -> int:
    """Freezes from a file of this content. Refused, it leaves nothing."""
    (place / "given.zip").write_bytes(content)
    out = place / "out"
    arguments = ("freeze", "--from", str(place / "given.zip"), "--package", "taken", "--out", str(out))
    ended = accepted_or_refused(*arguments, "--no-build", codes=codes)
    if ended.code:
        assert not out.exists()
    else:
        subprocess.run(["rm", "-r", str(out)], check=True)
    return ended.code


def _members(bundle: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(bundle) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _zipped(place: Path, members: dict[str, bytes]) -> bytes:
    path = place / "made.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path.read_bytes()


def _resealed(place: Path, members: dict[str, bytes], index: Any) -> bytes:
    """A bundle with this index, whose digests fit again: what a person who means harm would make."""
    if isinstance(index, dict) and isinstance(index.get("files"), dict):
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in members.items()}
        index = {**index, "files": {name: digests.get(name, old) for name, old in index["files"].items()}}
    text = json.dumps(index).encode()
    seal = hashlib.sha256(text).hexdigest().encode()
    return _zipped(place, {**members, "index.json": text, "index.sha256": seal})


def test_undamaged(bundle: Path, place: Path) -> None:
    assert _take(place, bundle.read_bytes(), codes=(0,)) == 0
    members = _members(bundle)
    assert _take(place, _resealed(place, members, json.loads(members["index.json"])), codes=(0,)) == 0


@profile(25)
@given(
    cuts=st.lists(
        st.tuples(st.integers(0, 10**6), st.binary(min_size=1, max_size=20)), min_size=1, max_size=4
    ),
    length=st.integers(0, 10**6),
)
def test_bytes_of_a_bundle_changed(bundle: Path, place: Path, cuts: list[Any], length: int) -> None:
    content = bytearray(bundle.read_bytes())
    for at, data in cuts:
        at %= len(content)
        content[at : at + len(data)] = data
    _take(place, bytes(content[: length % len(content)] if length % 3 == 0 else content))


@profile(45)
@given(
    place_=st.integers(0, 10**6),
    how=st.sampled_from(["replace", "replace", "drop", "rename"]),
    value=hostile_values,
)
def test_an_index_altered_and_sealed_again(
    bundle: Path, place: Path, place_: int, how: str, value: Any
) -> None:
    members = _members(bundle)
    index = json.loads(members["index.json"])
    paths = paths_of(index)
    _take(place, _resealed(place, members, changed(index, paths[place_ % len(paths)], how, value)))


@profile(30)
@given(place_=st.integers(0, 10**6), value=hostile_values)
def test_a_study_altered_and_sealed_again(bundle: Path, place: Path, place_: int, value: Any) -> None:
    members = _members(bundle)
    paths = paths_of(RECORD)
    record = changed(RECORD, paths[place_ % len(paths)], "replace", value)
    (name,) = [name for name in members if name.startswith("studies/")]
    members[name] = json.dumps(record).encode()
    # Each under a name of its own: a study that is there already is not taken again.
    index = json.loads(members["index.json"])
    index["studies"] = {hashlib.sha256(members[name]).hexdigest(): name}
    _take(place, _resealed(place, members, index))


@pytest.mark.parametrize("name", ["../../escaped", "/tmp/escaped", "kernels/../../escaped", "a\\..\\b", "."])
def test_names_that_lead_out(bundle: Path, place: Path, name: str) -> None:
    """A member of such a name is never written anywhere; an entry cannot stand there."""
    members = _members(bundle)
    index = json.loads(members["index.json"])
    entry = index["entries"][0]
    source = members[entry["source"]["file"]]
    more = {**members, name: source}
    index["files"][name] = hashlib.sha256(source).hexdigest()
    assert _take(place, _resealed(place, more, index), codes=(0,)) == 0
    entry["source"] |= {"file": name, "name": name}
    assert _take(place, _resealed(place, more, index), codes=(2,)) == 2
    assert not list(place.parent.rglob("escaped*"))


def test_an_archive_that_grows(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "MAX_BYTES", 10**6)
    path = place / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(5):
            archive.writestr(f"{number}", bytes(3 * 10**5))
    assert path.stat().st_size < 10**4
    assert "that is no bundle" in refused("freeze", "--from", str(path), "--bundle", str(place / "b.zip"))


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "{" * 5, "", "nonsense", "[]", "3", '{"format": 1, "entries": {}}']
)
def test_a_manifest_that_is_none(place: Path, text: str) -> None:
    path = place / "generated" / "manifest.json"
    before = path.read_bytes()
    path.write_text(text)
    try:
        for arguments in (["freeze"], ["freeze", "--bundle", str(place / "b.zip")], ["build", "--recompile"]):
            assert "manifest.json" in refused(*arguments)
        assert path.read_text() == text
        with pytest.raises(runtime_manifest.PackageError, match=r"manifest\.json"):
            runtime_manifest.load(path.parent)
    finally:
        path.write_bytes(before)


@profile(120)
@given(
    place_=st.integers(0, 10**6),
    how=st.sampled_from(["replace", "replace", "drop", "rename"]),
    value=hostile_values,
)
def test_a_manifest_altered(
    package: Path, tmp_path_factory: pytest.TempPathFactory, place_: int, how: str, value: Any
) -> None:
    document = json.loads((package / "manifest.json").read_text())
    paths = paths_of(document)
    folder = package.parent / "altered"
    folder.mkdir(exist_ok=True)
    text = json.dumps(changed(document, paths[place_ % len(paths)], how, value))
    (folder / "manifest.json").write_text(text)
    with_files = folder / "kernels"
    if not with_files.exists():
        with_files.symlink_to(package / "kernels")
    with contextlib.suppress(runtime_manifest.PackageError):
        _read_as_the_runtime_does(runtime_manifest.load(folder))
    with contextlib.suppress(InputError):
        load_winners(folder)


def _read_as_the_runtime_does(found: runtime_manifest.Manifest) -> None:
    """What the runtime takes out of a manifest without asking."""
    from coldforge.generated.runtime import ninja

    text = ninja.build_file(found, "g++", "out.so", "x86_64")
    assert not {"`", "$(", ";", "|", "&"} & set(text.split("default")[1])
    for entry in found.entries:
        assert entry["target"]["arch"].rstrip("a") is not None
        for shapes in entry["checks"]:
            assert all(shape is None or len(shape) >= 0 for shape in shapes.values())


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory, naive_winner: WinnerFactory) -> Path:
    """A package with one winner; its extension is not built."""
    folder = tmp_path_factory.mktemp("package") / "fuzzed_package"
    freeze([naive_winner()], folder, "fuzzed_package")
    return folder


CALL = """
import json, sys, warnings
import torch
warnings.simplefilter("always")
from fuzzed_package import conv2d_divide_leaky_relu as call
with warnings.catch_warnings(record=True) as said:
    y = call(torch.ones(1, 8, 5, 5), torch.ones(6, 8, 3, 3), None)
print(json.dumps([list(y.shape), [str(w.message) for w in said]]))
"""


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace('"kind": "cpu"', '"kind": 3'),
    ],
    ids=["kind"],
)
def test_a_package_with_a_damaged_manifest_answers(package: Path, damage: Callable[[str], str]) -> None:
    path = package / "manifest.json"
    whole = path.read_text()
    path.write_text(damage(whole))
    try:
        run = subprocess.run(
            [sys.executable, "-c", CALL],
            cwd=package.parent,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        shape, said = json.loads(run.stdout.splitlines()[-1])
        assert shape == [1, 6, 3, 3]
        assert any("manifest.json" in line for line in said)
    finally:
        path.write_text(whole)


@profile(80)
@given(
    content=st.binary(max_size=60) | st.text(max_size=40).map(lambda t: t.encode("utf-8", "surrogatepass"))
)
def test_any_ledger(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "ledger.jsonl"
    good = b'["1 2","d",["emulator"]]\n'
    path.write_bytes(content + b"\n" + good)
    assert claims([path])["1 2", "d"] >= {"emulator"}


def test_hostile_ledgers(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b"[" * 100_000 + b"\n" + b'["1",2,["a"]]\n["1","d",[3]]\n["1","d",{}]\n\xff\n{}\n')
    assert claims([path]) == {}
    with pytest.raises(ColdforgeError, match="cannot read the ledger"):
        claims([tmp_path])


@profile(80)
@given(
    place_=st.integers(0, 10**6),
    how=st.sampled_from(["replace", "replace", "drop", "rename"]),
    value=hostile_values,
)
def test_device_records(tmp_path_factory: pytest.TempPathFactory, place_: int, how: str, value: Any) -> None:
    """A record that cannot be is as good as none: the device is probed again."""
    home = tmp_path_factory.getbasetemp() / "devices_home"
    device: Any = SimpleNamespace(kind="cpu", target=cpu_target())
    probed = floor.Ceilings(3.0, 3.0, {"fma": 4.0}, 5, "probe")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(floor, "probe", lambda device: probed)
        stored = floor.store(device, home, floor.Ceilings(1.0, 2.0, {"fma": 7.0}, 8, "probe")).to_dict()
        (path,) = (home / "devices").glob("*.json")
        paths = paths_of(stored)
        path.write_text(json.dumps(changed(stored, paths[place_ % len(paths)], how, value)))
        found = floor.ceilings_of(device, home)
    assert found.read > 0
    assert found.write > 0
    assert all(rate > 0 for rate in found.flops.values())
    assert isinstance(found.cache_bytes, int)
