# SPDX-License-Identifier: Apache-2.0
"""Bundles: what goes in comes out, nothing else is accepted, and studies travel along."""

from __future__ import annotations

import hashlib
import json
import math
import random
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from coldforge.codegen.errors import InputError
from coldforge.codegen.freeze import Winner, merge, read_bundle, write_bundle
from coldforge.codegen.freeze.winner import OTHER_SIZES
from coldforge.tuner.storage import open_storage
from coldforge.tuner.transfer import import_studies, study_records

WinnerFactory = Callable[..., Winner]


def test_round_trip_and_same_bytes(
    tmp_path: Path, naive_winner: WinnerFactory, fake_cuda_winner: WinnerFactory
) -> None:
    winners = [naive_winner(), fake_cuda_winner(), naive_winner({"N": 2}, arch="x86-64-v3")]
    studies = {"b": {"trials": [1, 2]}, "a": {"trials": []}}
    first = write_bundle(tmp_path / "one.zip", winners, studies)
    second = write_bundle(tmp_path / "two.zip", winners[::-1], dict(reversed(studies.items())))
    assert first == second
    bundle = read_bundle(tmp_path / "one.zip")
    assert sorted(bundle.winners, key=lambda w: w.key) == sorted(winners, key=lambda w: w.key)
    assert bundle.studies == studies
    # Taking a bundle twice is taking it once.
    once, _ = merge([], bundle.winners)
    twice, changes = merge(once, bundle.winners)
    assert twice == once
    assert {c.what for c in changes} == {"kept"}


def test_damage_is_refused(
    tmp_path: Path, naive_winner: WinnerFactory, fake_cuda_winner: WinnerFactory
) -> None:
    path = tmp_path / "bundle.zip"
    write_bundle(path, [naive_winner(), fake_cuda_winner()])
    good = path.read_bytes()
    expected = read_bundle(path)
    draw = random.Random(0)
    messages: list[str] = []
    places = draw.sample(range(len(good)), 150)
    for place in places:
        damaged = bytearray(good)
        damaged[place] ^= 0x10
        path.write_bytes(damaged)
        try:
            found = read_bundle(path)
        except InputError as error:
            messages.append(str(error))
        else:  # a bit that carries no content, such as a time stamp
            assert found == expected
    assert len(messages) > len(places) // 2
    assert not any("\n" in message for message in messages)
    path.write_bytes(good[: len(good) // 2])
    with pytest.raises(InputError, match="no bundle"):
        read_bundle(path)
    with pytest.raises(InputError, match="cannot read"):
        read_bundle(tmp_path / "missing.zip")


def _rewritten(source: Path, target: Path, change: dict[str, bytes]) -> None:
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            new.writestr(name, change.get(name, old.read(name)))


def test_an_edited_member_is_named(tmp_path: Path, naive_winner: WinnerFactory) -> None:
    path, edited = tmp_path / "bundle.zip", tmp_path / "edited.zip"
    winner = naive_winner()
    write_bundle(path, [winner])
    source = f"kernels/{winner.source_name}.cpp"
    _rewritten(path, edited, {source: winner.source_text.replace("0.0f", "1.0f").encode()})
    with pytest.raises(InputError, match=rf"{source} differs from its digest"):
        read_bundle(edited)
    _rewritten(path, edited, {"index.json": b"{}"})
    with pytest.raises(InputError, match=r"index\.json differs from its digest"):
        read_bundle(edited)
    with zipfile.ZipFile(edited, "w") as archive:
        archive.writestr("something.txt", "else")
    with pytest.raises(InputError, match="not a coldforge bundle"):
        read_bundle(edited)


@pytest.mark.parametrize(
    "change", [{"entries": 3}, {"entries": [3]}, {"entries": [{}]}, {"studies": [1]}, {"measurement": "x"}]
)
def test_an_index_of_another_shape(
    tmp_path: Path, naive_winner: WinnerFactory, change: dict[str, object]
) -> None:
    path, edited = tmp_path / "bundle.zip", tmp_path / "edited.zip"
    write_bundle(path, [naive_winner()])
    with zipfile.ZipFile(path) as archive:
        index = json.loads(archive.read("index.json"))
    if "measurement" in change:
        index["entries"][0] |= change
    else:
        index |= change
    text = json.dumps(index).encode()
    _rewritten(path, edited, {"index.json": text, "index.sha256": hashlib.sha256(text).hexdigest().encode()})
    with pytest.raises(InputError, match="malformed"):
        read_bundle(edited)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"sizes": {}, "time_ms": 1.0}, "sizes are not those of H, N, W"),
        ({"sizes": {"N": 1, "H": 9}, "time_ms": 1.0}, "sizes are not those of H, N, W"),
        ({"sizes": {"N": 1, "H": 9, "W": 9, "R": 3}, "time_ms": 1.0}, "sizes are not those of H, N, W"),
        ({"sizes": {"N": 0, "H": 9, "W": 9}, "time_ms": 1.0}, "sizes has one that no kernel takes"),
        ({"sizes": {"N": 1, "H": -9, "W": 9}, "time_ms": 1.0}, "sizes has one that no kernel takes"),
        ({"sizes": {"N": 1, "H": 2**40, "W": 9}, "time_ms": 1.0}, "sizes has one that no kernel takes"),
        ({"sizes": {"N": 1, "H": 9, "W": 9}, "time_ms": 0.0}, "time_ms is not above zero"),
        ({"sizes": {"N": 1, "H": 9, "W": 9}, "time_ms": -1.0}, "time_ms is not above zero"),
        ({"sizes": {"N": 1, "H": 9, "W": 9}, "time_ms": math.nan}, "time_ms is not a number"),
    ],
)
def test_measurements_at_other_sizes_are_checked(
    tmp_path: Path, naive_winner: WinnerFactory, row: dict[str, Any], why: str
) -> None:
    winner, good = naive_winner(), {"sizes": {"N": 1, "H": 9, "W": 9}, "time_ms": 0.5}
    path = tmp_path / "bundle.zip"
    for rows in ([good], [good, row]):
        write_bundle(path, [replace(winner, measurement={**winner.measurement, OTHER_SIZES: rows})])
        if row in rows:
            with pytest.raises(InputError, match=rf"malformed entry: measurement.other_sizes\[1\].{why}"):
                read_bundle(path)
        else:
            assert read_bundle(path).winners[0].measurement[OTHER_SIZES] == rows


def test_nothing_to_bundle(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no winners"):
        write_bundle(tmp_path / "bundle.zip", [])
    assert not (tmp_path / "bundle.zip").exists()


def test_studies_travel(tmp_path: Path) -> None:
    here = open_storage(None, tmp_path / "here")
    there = open_storage(None, tmp_path / "there")
    study = optuna.create_study(storage=here, study_name="s1")
    space = {"TILE": optuna.distributions.CategoricalDistribution([8, 16])}
    state = optuna.trial.TrialState
    study.add_trial(
        optuna.create_trial(params={"TILE": 8}, distributions=space, value=1.5, user_attrs={"outcome": "ok"})
    )
    study.add_trial(optuna.create_trial(params={"TILE": 16}, distributions=space, state=state.PRUNED))
    study.set_user_attr("about", {"operator": "x"})
    records = study_records(here, ["s1", "not there"])
    assert list(records) == ["s1"]
    assert import_studies(there, records) == ["s1"]
    assert import_studies(there, records) == []
    copy = optuna.load_study(study_name="s1", storage=there)
    assert copy.user_attrs == study.user_attrs
    for mine, theirs in zip(copy.trials, study.trials, strict=True):
        assert (mine.params, mine.value, mine.state) == (theirs.params, theirs.value, theirs.state)
        assert (mine.distributions, mine.user_attrs) == (theirs.distributions, theirs.user_attrs)
        assert mine.datetime_complete == theirs.datetime_complete
    assert study_records(there, ["s1"]) == records
    with pytest.raises(InputError, match="malformed record"):
        import_studies(there, {"s2": {"format": 1}})
    assert study_records(None, ["s1"]) == {}
