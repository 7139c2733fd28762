# SPDX-License-Identifier: Apache-2.0
"""A new winner that is slower than what is frozen: which of the two stays, and what is said of it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import coldforge.codegen.freeze
import pytest
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.freeze import Winner, clearly_faster, freeze, load_winners, merge
from coldforge.codegen.freeze.checks import problem_of
from coldforge.codegen.target import Target
from coldforge.tuner.cli import run
from coldforge.tuner.outcome import TrialOutcome, TrialResult
from coldforge.tuner.search import Point
from coldforge.tuner.storage import open_storage
from coldforge.tuner.study import Study
from coldforge.tuner.winners import winner_to_dict
from optuna import create_study
from optuna.distributions import CategoricalDistribution

WinnerFactory = Callable[..., Winner]
OPERATOR = "conv2d_divide_leaky_relu"
FAST, SLOW = {"time_ms": 1.0, "ci95_ms": [0.9, 1.1]}, {"time_ms": 1.5, "ci95_ms": [1.4, 1.6]}


def _configs(winner: Winner) -> list[dict[str, Any]]:
    """Two legal configs of the template `direct`."""
    known = catalogue()
    (space,) = known.spaces(known.operator(OPERATOR), "cpu", "direct")
    problem, target = problem_of(winner, known), Target.from_dict(winner.target)
    first = space.default_for(problem, target)
    assert first is not None
    other = next(c for c in space.feasible(problem, target) if c != first)
    return [dict(first), dict(other)]


@pytest.fixture
def pair(naive_winner: WinnerFactory) -> Callable[..., tuple[Winner, Winner]]:
    """(what is frozen, what would replace it), of the same key."""

    def make(
        old: Mapping[str, Any] = FAST, new: Mapping[str, Any] = SLOW, **changes: Any
    ) -> tuple[Winner, Winner]:
        base = naive_winner()
        launch = {"units": "N", "grain": "1"}
        base = dataclasses.replace(base, template="direct", study="a study", launch=launch, derived={})
        winners = [
            dataclasses.replace(base, config=config, measurement={**base.measurement, **measured})
            for config, measured in zip(_configs(base), (old, new), strict=True)
        ]
        return dataclasses.replace(winners[0], **changes), winners[1]

    return make


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for the repository's generated/, and gives an empty home."""
    generated = tmp_path / "generated"
    freeze([], generated, "coldforge")
    monkeypatch.setattr(coldforge.codegen.freeze, "GENERATED", generated)
    monkeypatch.setenv("COLDFORGE_HOME", str(tmp_path / "home"))
    return generated


def _store(home: Path, winner: Winner, *tried: tuple[Winner, TrialOutcome]) -> None:
    made = create_study(storage=open_storage(None, home), study_name=winner.study)
    made.set_user_attr("about", {"operator": winner.operator, "created": "2026-01-01T00:00:00+00:00"})
    made.set_user_attr(
        "winner", {"trials": 1, "final": True, "time_ms": 1.0, "winner": winner_to_dict(winner)}
    )
    for other, outcome in tried:
        point = Point(other.template, other.config)
        time_ms = 1.0 if outcome is TrialOutcome.OK else None
        result = TrialResult(outcome, time_ms=time_ms, config=other.config, template=other.template)
        Study(made).record(point, result, {n: CategoricalDistribution([v]) for n, v in point.params.items()})


def _freeze(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert run(["freeze", "--no-build", "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def test_what_was_faster_stays(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], pair: Callable[..., tuple[Winner, Winner]]
) -> None:
    old, new = pair()
    freeze([old], own, "coldforge")
    _store(tmp_path / "home", new, (new, TrialOutcome.OK))
    report = _freeze(capsys)
    entry = {"name": old.name, "shape": "small C_out=6", "old_ms": 1.0, "new_ms": 1.5}
    assert report["entries"] == [{**entry, "what": "slower"}]
    assert not report["changed"]
    assert load_winners(own) == [old]
    assert run(["freeze", "--no-build"]) == 0
    said = capsys.readouterr().out
    assert (
        f"    kept  {old.name}  (small C_out=6)  1 ms stays: the new winner takes 1.5 ms (--replace takes it)"
        in said
    )
    # A new package takes what generated/ holds: there the faster one is the one that stays as well.
    into = ("--package", "cf_slower", "--out", str(tmp_path / "out"))
    assert [e["what"] for e in _freeze(capsys, *into)["entries"]] == ["slower"]
    assert load_winners(tmp_path / "out" / "cf_slower") == [old]
    report = _freeze(capsys, "--replace")
    assert report["entries"] == [{**entry, "what": "replaced"}]
    assert load_winners(own) == [new]
    # And what the package did not hold itself is new to it.
    assert [e["what"] for e in _freeze(capsys, *into, "--replace")["entries"]] == ["replaced"]
    shut = tmp_path / "other"
    assert [e["what"] for e in _freeze(capsys, *into[:3], str(shut))["entries"]] == ["added"]


@pytest.mark.parametrize("outcome", TrialOutcome)
def test_a_study_that_tried_it_knows_better(
    own: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    pair: Callable[..., tuple[Winner, Winner]],
    outcome: TrialOutcome,
) -> None:
    old, new = pair()
    freeze([old], own, "coldforge")
    _store(tmp_path / "home", new, (old, outcome), (new, TrialOutcome.OK))
    (entry,) = _freeze(capsys)["entries"]
    ran = outcome not in (TrialOutcome.ILLEGAL, TrialOutcome.RESOURCE_LIMIT)
    assert entry["what"] == ("replaced" if ran else "slower")


def test_a_bundle_brings_what_its_study_tried(
    own: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    pair: Callable[..., tuple[Winner, Winner]],
) -> None:
    old, new = pair()
    for name, tried, what in (("a", old, "replaced"), ("b", new, "slower")):
        monkeypatch.setenv("COLDFORGE_HOME", str(tmp_path / name))
        freeze([], own, "coldforge")
        _store(tmp_path / name, new, (tried, TrialOutcome.OK))
        bundle = str(tmp_path / f"{name}.zip")
        assert run(["freeze", "--bundle", bundle]) == 0
        capsys.readouterr()
        monkeypatch.setenv("COLDFORGE_HOME", str(tmp_path / f"{name}-elsewhere"))
        freeze([old], own, "coldforge")
        assert [e["what"] for e in _freeze(capsys, "--from", bundle)["entries"]] == [what]


def test_what_makes_it_clear(pair: Callable[..., tuple[Winner, Winner]]) -> None:
    assert clearly_faster(*pair())
    assert clearly_faster(*pair({"time_ms": 1.0}, {"time_ms": 1.01}))  # no interval: the figures alone
    assert not clearly_faster(*pair(SLOW, FAST))
    assert not clearly_faster(*pair(FAST, {**SLOW, "ci95_ms": [1.05, 1.6]}))  # the intervals meet
    assert not clearly_faster(*pair(verified=False))
    assert not clearly_faster(*pair(compiler="g++ 4.8"))
    base = dict(pair()[0].target)
    assert not clearly_faster(*pair(target={**base, "attributes": {**base["attributes"], "threads": 512}}))
    record = {"device_record": {"driver": "580.1"}}
    assert clearly_faster(*pair({**FAST, **record}, {**SLOW, **record}))
    assert not clearly_faster(*pair({**FAST, **record}, {**SLOW, "device_record": {"driver": "590.1"}}))
    by_energy = {"objective": "energy"}
    assert not clearly_faster(*pair(FAST, {**SLOW, **by_energy}))
    assert not clearly_faster(*pair({**FAST, **by_energy}, {**SLOW, **by_energy}))
    assert clearly_faster(*pair({**FAST, "ci95_ms": "odd", "device_record": 3}, SLOW))


@pytest.mark.parametrize("gone", [{"template": "of_old"}, {"config": {"TILE_X": 7}}])
def test_what_the_templates_no_longer_admit_goes(
    own: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    pair: Callable[..., tuple[Winner, Winner]],
    gone: dict[str, Any],
) -> None:
    old, new = pair(**gone)
    freeze([old], own, "coldforge")
    _store(tmp_path / "home", new, (new, TrialOutcome.OK))
    assert [e["what"] for e in _freeze(capsys)["entries"]] == ["replaced"]


def test_ptx_that_a_package_added_is_no_change(fake_cuda_winner: WinnerFactory) -> None:
    held = fake_cuda_winner(ptx=".version 9.0\n")
    merged, (change,) = merge([held], [fake_cuda_winner()])
    assert (change.what, merged) == ("kept", [held])


def test_a_bundle_replaces_nothing(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["freeze", "--bundle", "x.zip", "--replace"]) == 2
    assert "does not go with --package, --out, --replace, --no-build or --survey" in capsys.readouterr().err
