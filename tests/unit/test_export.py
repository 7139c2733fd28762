# SPDX-License-Identifier: Apache-2.0
"""A study in other programs' formats: nothing lost, nothing claimed that was not verified, valid by the
published schema."""

from __future__ import annotations

import csv
import io
import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from coldforge.tuner.cli import run
from coldforge.tuner.identity import StudyInputs
from coldforge.tuner.outcome import TrialOutcome, TrialResult
from coldforge.tuner.search import FeasibleSet
from coldforge.tuner.storage import open_storage
from coldforge.tuner.study import SPILLED, Study, open_study

OP = "conv2d_divide_leaky_relu"
SCHEMA = json.loads((Path(__file__).parents[1] / "support/t4/results-schema.json").read_text())
FEASIBLE = FeasibleSet(
    {
        "direct": [{"TILE": t, "KIND": k} for t in range(4) for k in ("plain", 'a, "quoted"\nkind')],
        "other": [{"TILE": 1, "DEPTH": 2}],
    }
)
REASON = 'normal inputs, "worst" at [0, 1]:\n=1+1 is 2; ümlaut'

RESULTS = [
    TrialResult(
        TrialOutcome.OK,
        time_ms=0.125,
        samples_ms=(0.124, 0.125, 0.1260000001),
        error=1.25e-7,
        bound_ratio=0.5,
        resources={"registers": 40, "code_bytes": 1000, "spill_store_bytes": 0},
        code_digest="abc",
        details={
            "compile_s": 0.5,
            "floor_ms": 0.1,
            "warm_ms": 0.11,
            "given_up": False,
            "phase_s": {"verify": 0.25, "time": 0.125, "warm": 0.01, "after": 0.05, "load": 0.002},
        },
    ),
    TrialResult(TrialOutcome.WRONG_RESULT, REASON, error=math.inf, bound_ratio=3e9, details={"compile_s": 1}),
    TrialResult(TrialOutcome.COMPILE_ERROR, "no such thing"),
    TrialResult(TrialOutcome.CRASH, "SIGSEGV", details={"attempts": 2}),
    TrialResult(TrialOutcome.TIMEOUT, "no answer within 60 s"),
    TrialResult(TrialOutcome.RESOURCE_LIMIT, "the device allows 232448"),
    TrialResult(TrialOutcome.RESOURCE_LIMIT, "it spills", details={SPILLED: 900}),
    TrialResult(TrialOutcome.ILLEGAL, "TILE is too small"),
    TrialResult(TrialOutcome.OK, time_ms=0.5, samples_ms=(0.5,) * 3, error=1e-7, details={"given_up": True}),
]
INVALIDITY = [
    "correct",
    "correctness",
    "compile",
    "runtime",
    "timeout",
    "runtime",
    "constraints",
    "constraints",
]


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    monkeypatch.setenv("COLDFORGE_HOME", str(tmp_path / "home"))
    storage = open_storage(None, tmp_path / "home")
    assert storage is not None
    target = {"kind": "cpu", "arch": "x86-64-v3", "device": "Fast CPU [tm]", "attributes": {}}
    problem = {"dtype": "fp32", "dims": {"N": 1}}
    inputs = StudyInputs(OP, "small", "d", problem, "fp32", target, {"direct": "", "other": ""}, {}, "g++ 12")
    made = open_study(storage, inputs)
    for index, result in enumerate(RESULTS):
        made.record(FEASIBLE.points[index], result, FEASIBLE.distributions_of(index), seconds=1.5)
    made.touch()
    return made


def exported(capsys: pytest.CaptureFixture[str], form: str) -> str:
    assert run(["export", OP, "--format", form]) == 0
    return capsys.readouterr().out


def hold_finals(study: Study) -> None:
    config = dict(FEASIBLE.points[0].config)
    winner = {"template": "direct", "config": config, "resources": {}, "measurement": {"time_ms": 0.124}}
    record = {"trials": len(RESULTS), "final": True, "time_ms": 0.124, "winner": winner, "declared": True}
    row = {"template": "direct", "config": config, "outcome": "ok", "time_ms": 0.124, "standing": "leader"}
    study.set_winner(record, [{**row, "chosen": True, "ci95_ms": [0.123, 0.125]}])


def test_t4_is_valid_and_honest(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(exported(capsys, "t4"))
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    results = document["results"]
    assert [one["invalidity"] for one in results] == [*INVALIDITY, "correct"]
    assert [one["correctness"] for one in results] == [1, 0, 0, 0, 0, 0, 0, 0, 1]
    assert document["schema_version"] == "1.0.0"
    assert document["metadata"]["timeunit"] == "milliseconds"
    assert document["metadata"]["device"] == "Fast CPU [tm]"
    for one in results:
        measured = {m["name"]: m for m in one["measurements"]}
        assert one["objectives"] == ["time"]
        assert ("time" in measured) is (one["correctness"] == 1)
        assert measured["outcome"]["value"] in set(TrialOutcome)
        moment = datetime.fromisoformat(one["timestamp"])
        assert abs((datetime.now(UTC) - moment).total_seconds()) < 600
    first = results[0]
    assert first["configuration"] == {"template": "direct", "TILE": 0, "KIND": "plain"}
    assert first["times"]["runtimes"] == [0.124, 0.125, 0.1260000001]
    assert first["times"]["compilation_time"] == 500.0
    assert first["times"]["validation"] == pytest.approx(300.0)
    assert first["times"]["benchmark"] == pytest.approx(135.0)
    assert first["times"]["framework"] == pytest.approx(2.0)
    figures = {m["name"]: (m["value"], m["unit"]) for m in first["measurements"]}
    assert figures["time"] == (0.125, "ms")
    assert figures["code_bytes"] == (1000, "bytes")
    assert figures["registers"] == (40, "")
    assert "final_time" not in figures
    wrong = {m["name"]: m["value"] for m in results[1]["measurements"]}
    assert wrong["reason"] == REASON
    assert {m["name"]: m["value"] for m in results[8]["measurements"]}["given_up"] == 1


def test_the_schema_refuses_what_is_wrong(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    """It is lenient, but not to the words that count."""
    document = json.loads(exported(capsys, "t4"))
    document["results"][0]["invalidity"] = "fine"
    with pytest.raises(jsonschema.ValidationError, match="'fine' is not one of"):
        jsonschema.validate(document, SCHEMA)
    del document["results"][0]["correctness"], document["results"][0]["invalidity"]
    with pytest.raises(jsonschema.ValidationError, match="is a required property"):
        jsonschema.validate(document, SCHEMA)


def test_csv_has_a_line_for_each_trial(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    hold_finals(study)
    rows = list(csv.DictReader(io.StringIO(exported(capsys, "csv"), newline="")))
    assert [row["trial"] for row in rows] == [str(index) for index in range(len(RESULTS))]
    assert [row["outcome"] for row in rows] == [result.outcome.value for result in RESULTS]
    for row, point in zip(rows, FEASIBLE.points, strict=True):
        assert row["template"] == point.template
        given = {name: row[f"config.{name}"] for name in ("TILE", "KIND", "DEPTH")}
        assert {name: value for name, value in given.items() if value} == {
            name: str(value) for name, value in point.config.items()
        }
    first, wrong = rows[0], rows[1]
    assert float(first["time_ms"]) == 0.125
    assert float(first["error"]) == 1.25e-7
    assert (first["given_up"], first["resources.registers"], first["samples"]) == ("false", "40", "3")
    assert (first["standing"], first["chosen"], first["final_high_ms"]) == ("leader", "true", "0.125")
    assert (first["compile_s"], first["verify_s"], first["seconds"]) == ("0.5", "0.25", "1.5")
    assert wrong["reason"] == REASON
    assert (wrong["time_ms"], wrong["standing"], wrong["error"]) == ("", "", "")


def test_json_holds_all_of_it(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    hold_finals(study)
    document = json.loads(exported(capsys, "json"))
    assert (document["format"], document["version"]) == ("coldforge-study", 1)
    assert document["summary"]["declared"] is True
    assert document["about"]["operator"] == OP
    for index, (trial, result) in enumerate(zip(document["trials"], RESULTS, strict=True)):
        assert trial["config"] == dict(FEASIBLE.points[index].config)
        expected = result.to_dict()
        for name in ("outcome", "reason", "time_ms", "samples_ms", "resources", "details"):
            assert trial[name] == expected[name]
        assert trial["standing"] == ("leader" if index == 0 else None)
    assert document["trials"][1]["error"] is None  # infinite: there is none


def test_a_file_is_written_whole(study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "new" / "study.json"
    assert run(["export", study.name[:-2], "--format", "t4", "-o", str(place), "--json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert told == {
        "file": str(place),
        "format": "t4",
        "bytes": place.stat().st_size,
        "trials": len(RESULTS),
        "study": study.name,
    }
    assert json.loads(place.read_text())["schema_version"] == "1.0.0"
    assert [path.name for path in place.parent.iterdir()] == ["study.json"]
    assert run(["export", OP, "--format", "csv", "-o", str(place)]) == 0
    assert f"9 trials of {study.name}" in capsys.readouterr().out
    assert place.read_text().startswith("trial,completed,template,config.TILE")


def test_an_empty_study_is_exported(tmp_path: Path, study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    storage = open_storage(None, tmp_path / "home")
    assert storage is not None
    target = {"kind": "cpu", "arch": "a", "device": "d", "attributes": {}}
    problem = {"dtype": "fp32", "dims": {}}
    made = open_study(storage, StudyInputs("empty", "s", "d", problem, "fp32", target, {}, {}, "g++"))
    for form in ("csv", "json", "t4"):
        assert run(["export", made.name, "--format", form]) == 0
        assert capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nope", "--format", "csv"], "unknown study 'nope'"),
        ([OP], "--format"),
        ([OP, "--format", "xml"], "xml"),
        ([OP, "--format", "csv", "-o", "FOLDER"], "is a folder; name a file"),
        ([OP, "--format", "csv", "-o", "FOLDER/file.txt/x.csv"], "is a file, not a folder"),
        ([OP, "--format", "csv", "-o", "/dev/full"], "is no file"),
        ([OP, "--format", "csv", "-o", "/proc/nothing/x.csv"], "/proc/nothing"),
        ([OP, "--format", "csv", "-o", "a\0b"], "null"),
        ([OP, "--format", "csv", "-o", "x" * 300], "too long"),
        ([OP, "--format", "csv", "--json"], "needs -o FILE"),
        ([OP, "--format", "csv", "--storage", "nonsense"], "storage URL 'nonsense' is malformed"),
    ],
)
def test_bad_input(
    arguments: list[str], expected: str, study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file.txt").write_text("kept")
    given = [argument.replace("FOLDER", str(tmp_path)) for argument in arguments]
    assert run(["export", *given]) == 2
    captured = capsys.readouterr()
    assert expected in captured.err
    assert len(captured.err.strip().splitlines()) == 1
    assert captured.out == ""
    assert (tmp_path / "file.txt").read_text() == "kept"
