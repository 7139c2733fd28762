# SPDX-License-Identifier: Apache-2.0
"""What freezing writes: the same bytes for the same winners, and everything a winner holds."""

from __future__ import annotations

import ast
import dataclasses
import errno
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from coldforge.codegen import atomic
from coldforge.codegen.catalogue import Catalogue, catalogue
from coldforge.codegen.errors import ColdforgeError, DeclarationError, InputError, UnknownName
from coldforge.codegen.freeze import GENERATED, Winner, freeze, load_winners, merge, split_stale
from coldforge.codegen.freeze.checks import check_shapes
from coldforge.codegen.freeze.signature import Signature
from coldforge.codegen.freeze.tree import ABANDONED_S
from coldforge.codegen.freeze.units import all_units, cubins_by_entry
from coldforge.codegen.freeze.wrapper import render_operator
from coldforge.codegen.problem import make_problem
from mean_winners import mean_winner

WinnerFactory = Callable[..., Winner]


def _tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_same_winners_same_bytes(
    tmp_path: Path, naive_winner: WinnerFactory, fake_cuda_winner: WinnerFactory
) -> None:
    winners = [naive_winner(), naive_winner({"N": 1}), naive_winner(arch="x86-64-v4"), fake_cuda_winner()]
    freeze(winners, tmp_path / "one", "pkg")
    freeze(winners[::-1], tmp_path / "two", "pkg")
    one = _tree(tmp_path / "one")
    assert one == _tree(tmp_path / "two")
    report = freeze(winners, tmp_path / "one", "pkg")
    assert not report.changed
    assert sorted(report.entries) == sorted(w.name for w in winners)
    assert not list(tmp_path.glob(".*"))  # nothing is left of making it aside
    manifest = json.loads(one["manifest.json"])
    assert manifest["format"] == 1
    assert set(manifest["files"]) == {n for n in one if not n.startswith("runtime/")} - {"manifest.json"}
    for entry in manifest["entries"]:
        assert len(entry["checks"]) == 4
        assert entry["attributes"] == {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1}


def test_manifest_holds_the_winners(
    tmp_path: Path, naive_winner: WinnerFactory, fake_cuda_winner: WinnerFactory
) -> None:
    winners = [naive_winner(), fake_cuda_winner(), fake_cuda_winner(verified=False, precision="tf32")]
    freeze(winners, tmp_path / "pkg", "pkg")
    loaded = load_winners(tmp_path / "pkg")
    assert sorted(loaded, key=lambda w: w.key) == sorted(winners, key=lambda w: w.key)
    # So freezing what was loaded changes nothing.
    assert not freeze(loaded, tmp_path / "pkg", "pkg").changed
    cubin = next((tmp_path / "pkg" / "kernels").glob("*.cubin"))
    cubin.write_bytes(b"another")
    with pytest.raises(InputError, match=r"\.cubin differs from its digest"):
        load_winners(tmp_path / "pkg")


def test_a_changed_tree_is_replaced_whole(tmp_path: Path, naive_winner: WinnerFactory) -> None:
    package = tmp_path / "pkg"
    freeze([naive_winner(), naive_winner({"stride": 2})], package, "pkg")
    built = package / "_build" / "0123" / "pkg.so"
    built.parent.mkdir(parents=True)
    built.write_bytes(b"so")
    report = freeze([naive_winner()], package, "pkg")
    assert report.changed
    assert built.read_bytes() == b"so"  # a build folder is a cache: it stays
    built.unlink()
    kept = _tree(package)
    freeze([naive_winner()], tmp_path / "fresh", "pkg")
    assert kept == _tree(tmp_path / "fresh")
    assert not list(tmp_path.glob(".*"))


class Killed(BaseException):
    """Ends a command where nothing after it is done."""


@pytest.mark.parametrize("moment", ["before", "after", "failed"])
def test_a_freeze_that_is_ended_costs_no_extension(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, naive_winner: WinnerFactory, moment: str
) -> None:
    package = tmp_path / "pkg"
    freeze([naive_winner()], package, "pkg")
    built = package / "_build" / "0123" / "pkg.so"
    built.parent.mkdir(parents=True)
    built.write_bytes(b"so")
    (built.parent / "work-7").mkdir()  # a build is running
    before = _tree(package)
    freeze([naive_winner({"N": 7})], tmp_path / "other", "pkg")
    new = {**_tree(tmp_path / "other"), "_build/0123/pkg.so": b"so"}
    exchange = atomic._exchange

    def ends(*folders: Path) -> bool:
        if moment == "failed":
            raise OSError(errno.EIO, "Input/output error")
        if moment == "after":
            exchange(*folders)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(atomic, "_exchange", ends)
        if moment != "failed":  # a killed command removes nothing
            patch.setattr("shutil.rmtree", lambda *arguments, **named: None)
        with pytest.raises(Killed if moment != "failed" else ColdforgeError):
            freeze([naive_winner({"N": 7})], package, "pkg")
    assert _tree(package) == (new if moment == "after" else before)
    freeze([naive_winner({"N": 7})], package, "pkg")
    assert _tree(package) == new


@pytest.mark.parametrize("links", [True, False])
def test_what_is_built_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, naive_winner: WinnerFactory, links: bool
) -> None:
    """Also on a file system without second names, and where the builds are elsewhere."""
    if not links:
        monkeypatch.setattr(os, "link", _no_links)
    for name in ("pkg", "away"):
        freeze([naive_winner()], tmp_path / name, "pkg")
        folder = tmp_path / name / "_build"
        if name == "away":
            (tmp_path / "builds").mkdir()
            folder.symlink_to("../builds")
        (folder / "0123").mkdir(parents=True)
        (folder / "0123" / "pkg.so").write_bytes(b"so")
        assert freeze([naive_winner({"N": 7})], tmp_path / name, "pkg").changed
        assert (folder / "0123" / "pkg.so").read_bytes() == b"so"
        assert folder.is_symlink() == (name == "away")


def _no_links(*_: object, **__: object) -> None:
    raise PermissionError(errno.EPERM, "Operation not permitted")


@pytest.mark.parametrize("name", ["NOTES.md", "tests/test_mine.py", "operators/mine.py", "runtime/notes.txt"])
def test_what_is_not_coldforges_is_not_deleted(
    tmp_path: Path, naive_winner: WinnerFactory, name: str
) -> None:
    package = tmp_path / "pkg"
    freeze([naive_winner()], package, "pkg")
    (package / name).parent.mkdir(exist_ok=True)
    (package / name).write_text("mine")
    before = _tree(package)
    for winner in (naive_winner(), naive_winner({"N": 7})):
        with pytest.raises(InputError, match=f"/pkg/{name} is not coldforge's, .* move it out of"):
            freeze([winner], package, "pkg")
    assert _tree(package) == before


def test_what_an_earlier_coldforge_wrote_is_replaced(tmp_path: Path, naive_winner: WinnerFactory) -> None:
    package = tmp_path / "pkg"
    freeze([naive_winner()], package, "pkg")
    wanted = _tree(package)
    manifest = json.loads(wanted["manifest.json"])
    for name in ("kernels/control.cpp", "helpers/old.py"):
        manifest["files"][name] = "0" * 64
        (package / name).parent.mkdir(exist_ok=True)
        (package / name).write_text("old")
    (package / "manifest.json").write_text(json.dumps(manifest))
    for name in (
        "runtime/native/control.h",
        "runtime/gone.py",
        "__pycache__/x.pyc",
        "kernels/__pycache__/y.pyc",
    ):
        (package / name).parent.mkdir(exist_ok=True)
        (package / name).write_text("old")
    assert freeze([naive_winner()], package, "pkg").changed
    assert _tree(package) == wanted


def test_a_package_behind_a_link(tmp_path: Path, naive_winner: WinnerFactory) -> None:
    store, link = tmp_path / "store", tmp_path / "pkg"
    freeze([naive_winner()], store / "v1", "pkg")
    link.symlink_to("store/v1")
    assert freeze([naive_winner({"N": 7})], link, "pkg").changed
    assert link.is_symlink()
    assert [w.workload["N"] for w in load_winners(store / "v1")] == [7]
    assert sorted(p.name for p in (*tmp_path.iterdir(), *store.iterdir())) == ["pkg", "store", "v1"]


def test_what_a_killed_freeze_left_is_removed(tmp_path: Path, naive_winner: WinnerFactory) -> None:
    abandoned, writing = tmp_path / ".pack.new-old", tmp_path / ".pack.new-now"
    others = tmp_path / ".package.new-old"
    for folder in (abandoned, writing, others):
        folder.mkdir()
        (folder / "manifest.json").write_text("{}")
    long_ago = time.time() - 2 * ABANDONED_S
    os.utime(abandoned, (long_ago, long_ago))
    os.utime(others, (long_ago, long_ago))
    freeze([naive_winner()], tmp_path / "pack", "pack")
    assert sorted(p.name for p in tmp_path.iterdir()) == [".pack.new-now", ".package.new-old", "pack"]


def test_package_imports_only_torch_and_the_standard_library(
    tmp_path: Path, naive_winner: WinnerFactory
) -> None:
    freeze([naive_winner()], tmp_path / "pkg", "pkg")
    allowed = {*sys.stdlib_module_names, "torch", "ninja"}
    for path in (tmp_path / "pkg").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert {alias.name.split(".")[0] for alias in node.names} <= allowed, path
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                assert str(node.module).split(".")[0] in allowed, path
    text = (tmp_path / "pkg" / "runtime" / "namespace.py").read_text()
    assert 'NAMESPACE = "pkg"' in text
    for path in (tmp_path / "pkg" / "runtime").rglob("*"):
        if path.is_file() and path.name != "namespace.py":
            own = GENERATED / "runtime" / path.relative_to(tmp_path / "pkg" / "runtime")
            assert path.read_bytes() == own.read_bytes()


def test_repository_package_is_what_freeze_writes(tmp_path: Path) -> None:
    freeze(load_winners(GENERATED), tmp_path / "generated", "coldforge")
    ours = {
        n: d for n, d in _tree(GENERATED).items() if not n.startswith("_build/") and "__pycache__" not in n
    }
    assert ours == _tree(tmp_path / "generated")


def test_an_operator_that_reduces(tmp_path: Path, naive_winner: WinnerFactory) -> None:
    unbiased = mean_winner({"conv_bias": 0, "bias": 0})
    winners = [mean_winner(), unbiased, naive_winner()]
    freeze(winners, tmp_path / "one", "pkg")
    freeze(winners[::-1], tmp_path / "two", "pkg")
    one = _tree(tmp_path / "one")
    assert one == _tree(tmp_path / "two")
    assert not freeze(load_winners(tmp_path / "one"), tmp_path / "one", "pkg").changed
    assert "reference/reductions.py" in json.loads(one["manifest.json"])["files"]
    entries = {e["name"]: e for e in json.loads(one["manifest.json"])["entries"]}
    biased, bare = entries[winners[0].name]["checks"], entries[unbiased.name]["checks"]
    assert [c["bias"] for c in biased] == [[6, 1, 1]] * 5
    assert [(c["conv_bias"], c["bias"]) for c in bare] == [(None, None)] * 5
    assert max(c["x"][2] * c["x"][3] for c in biased) > 8000  # a plane that is long enough to be cut up
    # What reduces nothing carries no copy of the reductions, and the same file as before.
    freeze([naive_winner()], tmp_path / "plain", "pkg")
    plain = _tree(tmp_path / "plain")
    assert "reference/reductions.py" not in plain
    path = "operators/conv2d_divide_leaky_relu.py"
    assert plain[path] == one[path] == (GENERATED / path).read_bytes()


ROWS = """
tensors: {a: [N, L], b: [N, L]}
output: {c: [N]}
channel_dim: null
run_time: [N, L]
reference: rows
workloads: {small: {N: 3, L: 5}}
"""


def test_a_family_of_few_parts(tmp_path: Path) -> None:
    # No attributes, no scalars, no channels, nothing compiled in: each list of arguments may be empty.
    folder = tmp_path / "rows"
    folder.mkdir()
    (folder / "family.yaml").write_text(ROWS)
    (folder / "reference.py").write_text("def rows(a, b):\n    return (a * b).sum(1)\n")
    known = catalogue(folder)
    signature = Signature(known.operator("rows"))
    text = render_operator(signature)
    compile(text, "rows.py", "exec")
    assert "return OP(*checked(a, b, precision))" in text
    assert signature.schema == "rows(Tensor a, Tensor b, str? precision=None) -> Tensor"
    shapes = check_shapes(make_problem(known.operator("rows"), "small"))
    assert len(shapes) == len({str(s) for s in shapes}) == 5
    (folder / "family.yaml").write_text(ROWS + "module: Rows\n")
    with pytest.raises(DeclarationError, match=r"its parameter b \[N, L\] would need 'L' before"):
        Catalogue((folder,)).operator("rows")


@pytest.mark.parametrize("namespace", ["", "Aten", "aten", "profiler", "a-b", "1a", "class", "x" * 80])
def test_bad_namespace(tmp_path: Path, naive_winner: WinnerFactory, namespace: str) -> None:
    with pytest.raises(InputError, match="package name"):
        freeze([naive_winner()], tmp_path / "pkg", namespace)
    assert not (tmp_path / "pkg").exists()


def test_refusals(tmp_path: Path, naive_winner: WinnerFactory, fake_cuda_winner: WinnerFactory) -> None:
    good = naive_winner()
    bad = {
        "another declaration": naive_winner(operator_digest="0" * 64),
        "differs from its digest": naive_winner(source_digest="0" * 64),
        "unknown precision": naive_winner(precision="fp8"),
        "cannot be frozen": fake_cuda_winner(target={**fake_cuda_winner().target, "arch": "gfx90a"}),
        "has a binary": fake_cuda_winner(binary=None),
        "lacks C_out": naive_winner(specialisation={"dtype": "fp32", "C_in": 8}),
        "is no file name": naive_winner(source_name="../../evil"),
        "flag '-fplugin=/x;y' is not accepted": naive_winner(flags=("-O3", "-fplugin=/x;y")),
        "names no version": fake_cuda_winner(compiler="nvrtc"),
    }
    for reason, winner in bad.items():
        with pytest.raises(InputError, match=reason):
            freeze([good, winner], tmp_path / "pkg", "pkg")
    with pytest.raises(InputError, match="the same key"):
        freeze([good, naive_winner(time_ms=2.0)], tmp_path / "pkg", "pkg")
    with pytest.raises(UnknownName, match="no_such_operator"):
        freeze([naive_winner(operator="no_such_operator")], tmp_path / "pkg", "pkg")
    assert not (tmp_path / "pkg").exists()
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="not a package of frozen kernels"):
        freeze([good], tmp_path / "home", "pkg")
    assert (tmp_path / "home" / "thesis.tex").exists()


def test_merge_replaces_by_key(naive_winner: WinnerFactory) -> None:
    old, slower = naive_winner(time_ms=2.0), naive_winner({"N": 1}, time_ms=3.0)
    new = naive_winner(time_ms=1.0)
    other_device = naive_winner(device="Another CPU")
    merged, changes = merge([old, slower], [new, slower, other_device])
    assert sorted(w.key for w in merged) == sorted({old.key, slower.key, other_device.key})
    assert new in merged
    assert old not in merged
    assert [(c.what, c.old_ms, c.new_ms) for c in changes] == [
        ("replaced", 2.0, 1.0),
        ("kept", 3.0, 3.0),
        ("added", None, 1.0),
    ]


def test_entries_of_another_declaration_are_stale(naive_winner: WinnerFactory) -> None:
    good = naive_winner()
    old, gone = naive_winner(operator_digest="0" * 64), naive_winner(operator="gone")
    assert split_stale([good, old, gone], catalogue()) == ([good], [old, gone])


def test_units_and_cubins(naive_winner: WinnerFactory, fake_cuda_winner: WinnerFactory) -> None:
    v3, arm = naive_winner(arch="x86-64-v3"), naive_winner(arch="aarch64")
    # The same source at another workload: no further unit.
    again = dataclasses.replace(v3, workload={**v3.workload, "N": 9})
    units = all_units([v3, again, arm, naive_winner()])
    assert sorted((u.arch, u.machine) for u in units) == [
        ("aarch64", "aarch64"),
        ("x86-64-v2", "x86_64"),
        ("x86-64-v2", "x86_64"),
        ("x86-64-v3", "x86_64"),
    ]
    assert len({u.symbol for u in units}) == 4
    assert all([f for f in u.flags if f.startswith("-march=")] for u in units)
    one = fake_cuda_winner(b"one")
    two = dataclasses.replace(fake_cuda_winner(b"two"), workload={**one.workload, "N": 9})
    same = dataclasses.replace(one, workload={**one.workload, "N": 7})
    assert len({c.file for c in cubins_by_entry([one, same]).values()}) == 1
    assert len({c.file for c in cubins_by_entry([one, two]).values()}) == 2


def test_an_init_of_somebody_elses_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("VALUE = 1\n")
    with pytest.raises(InputError, match="is not a package of frozen kernels"):
        freeze([], tmp_path, "somebody")
    assert (tmp_path / "__init__.py").read_text() == "VALUE = 1\n"
