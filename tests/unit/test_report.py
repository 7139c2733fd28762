# SPDX-License-Identifier: Apache-2.0
"""``coldforge report``: what it says of studies of every kind, and how it fails."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from coldforge.codegen.target import cuda_target
from coldforge.tuner.cli import run
from coldforge.tuner.outcome import TrialOutcome
from coldforge.tuner.report.declared import Declared
from coldforge.tuner.report.occupancy import Occupancy, occupancy_of
from coldforge.tuner.report.page import MAX_BYTES, render_page
from coldforge.tuner.report.story import Story, tell
from coldforge.tuner.storage import open_storage
from coldforge.tuner.study import Study
from coldforge.tuner.transfer import import_studies, study_records
from optuna.storages import InMemoryStorage
from report_studies import (
    EVIL,
    OP,
    failed,
    hold_finals,
    hostile_study,
    large_study,
    new_study,
    record,
    recorded_study,
    right,
    typical_study,
)


def _page(study: Study) -> tuple[Story, str]:
    story = tell(study)
    return story, render_page(story)


@pytest.fixture(scope="module")
def typical() -> tuple[Story, str]:
    return _page(typical_study())


def test_it_leads_with_why_the_winner_won(typical: tuple[Story, str]) -> None:
    story, _ = typical
    text = "\n".join(story.sentences)
    for words in (
        "The winner takes 0.88 ms (95% interval 0.8712 to 0.8888): one of 2 that may be the fastest of 25",
        "(30 were tried).",
        "1.4x as fast as the default config, 2 ms; it differs from it in ",  # by the rounds of the finals
        " → ",
        "1 other finalist may be as fast",
        "the rule decided: fewer things",
        "reaches 57% of the device's arithmetic speed, which allows 0.5 ms at best",
        "PED-ANOVA",
        "5 configs failed (17%), all as wrong_result: normal inputs: off by 5 bounds.",
    ):
        assert words in text


def test_the_page_is_whole_and_small(typical: tuple[Story, str]) -> None:
    _, page = typical
    assert len(page.encode()) < MAX_BYTES
    assert not re.search(r"(?:src|href)\s*=\s*[\"']?(?:https?:)?//", page)
    assert "default-src &#39;none&#39;; script-src &#39;sha256-" in page
    sections = re.findall(r'<section id="([\w-]+)">', page)
    assert sections == [
        *("why", "search", "importance", "combinations", "values", "final-times", "roof", "hardware"),
        *("failures", "source", "commands", "about"),
    ]


def test_a_page_of_600_trials_stays_under_two_megabytes() -> None:
    story, page = _page(large_study(600))
    assert len(story.material.results) == 600
    assert len(page.encode()) < MAX_BYTES


def test_the_same_study_gives_the_same_page(typical: tuple[Story, str]) -> None:
    story, page = typical
    assert render_page(story) == page


def test_the_source_is_set_against_the_default_s(typical: tuple[Story, str]) -> None:
    story, page = typical
    assert story.source is not None
    shown = story.source.difference
    assert shown.compared
    assert 0 < shown.added < story.source.text_lines
    lines = {
        kind: [n.text for b in shown.blocks for n in b.lines if n.kind == kind]
        for kind in ("added", "removed")
    }
    assert story.source.parameters
    for name, old, new in story.source.parameters:
        assert any(name in line and old in line for line in lines["removed"])
        assert any(name in line and new in line for line in lines["added"])
    assert '<span class="line added"' in page
    assert any(block.folded for block in shown.blocks)


def test_a_cpu_study_says_why_there_are_no_registers(typical: tuple[Story, str]) -> None:
    assert "This study is of a CPU" in typical[1]


def test_a_recorded_gpu_study() -> None:
    """420 trials of an H200, on a machine without one."""
    story, page = _page(recorded_study())
    assert len(page.encode()) < MAX_BYTES
    assert not story.no_resources
    assert any("registers a thread and spills nothing; 4 blocks fit" in s for s in story.sentences)
    assert story.roofline.bandwidth == pytest.approx(4.62e12, rel=0.05)
    assert [rate for _, rate in story.roofline.rates] == pytest.approx([989.4e12 / 3, 66.9e12])
    assert "NVIDIA H200" in page
    rows = _data(page)["rows"]
    assert len(rows) == 420
    assert {row[_column(page, "occupancy")] for row in rows} == {0.125, 0.1875, 0.25}


def _data(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


def _column(page: str, name: str) -> int:
    return _data(page)["columns"].index(name)


# --- studies of every kind ---


def test_nothing_tried() -> None:
    story, page = _page(new_study(InMemoryStorage()))
    assert story.sentences == ["Nothing was tried yet, so there is nothing to explain."]
    assert "Nothing was tried yet." in page
    assert story.source is None


def test_no_right_config() -> None:
    study = new_study(InMemoryStorage())
    reasons = ["error: no such thing", "error: another", "normal inputs: 3 outputs are wrong"]
    outcomes = [TrialOutcome.COMPILE_ERROR, TrialOutcome.COMPILE_ERROR, TrialOutcome.WRONG_RESULT]
    record(study, {"direct": [{"A": i} for i in range(3)]}, list(map(failed, outcomes, reasons)))
    story, page = _page(study)
    assert story.sentences[0].startswith("No config was right: all 3 configs")
    assert "most of them (2) as compile_error: error: no such thing." in story.sentences[1]
    assert [(c.outcome, c.count, c.example) for c in story.causes] == [
        ("compile_error", 2, "error: no such thing"),
        ("wrong_result", 1, "normal inputs: 3 outputs are wrong"),
    ]
    assert "There is no winner." in page


def test_one_right_config() -> None:
    study = new_study(InMemoryStorage(), defaults={"direct": {"A": 1}})
    record(study, {"direct": [{"A": 1}]}, [right(2.0)])
    story, page = _page(study)
    assert "the only right config" in story.sentences[0]
    assert "it is provisional" in story.sentences[0]
    assert any("default config itself is the winner" in s for s in story.sentences)
    assert "20 are the least for an estimate" in page
    assert "Tried with one value alone: A=1." in page


def test_several_templates_with_parameters_of_their_own() -> None:
    study = new_study(InMemoryStorage(), ("first", "second"), defaults={"first": {"A": 0, "B": "x"}})
    configs = {
        "first": [{"A": i, "B": b} for i in range(3) for b in "xy"],
        "second": [{"A": i, "C": c} for i in (1, 2) for c in ("p", "q")],
    }
    times = [5.0, 4.0, 3.0, 3.5, 2.5, 2.8, 1.5, 1.0, 2.0, 1.8]
    record(study, configs, [right(t) for t in times])
    story, page = _page(study)
    assert story.material.templates == ["second", "first"]
    assert story.material.parameters == ["A", "C", "B"]
    assert [axis.values for axis in story.material.axes("second")] == [(1, 2), ("p", "q")]
    assert any("comes from the template second, the default from first" in s for s in story.sentences)
    data = _data(page)
    assert [t["name"] for t in data["templates"]] == ["second", "first"]
    assert {c["id"] for c in data["charts"]} >= {"parallel-0", "parallel-1", "slice-0-0", "slice-1-1"}
    values = _column(page, "values")
    assert data["rows"][0][values] == ["0", "x"]
    assert data["rows"][7][values] == ["1", "q"]


def test_values_of_every_kind_are_shown_in_order() -> None:
    """A study's file has whole numbers and words; what the report shows takes any."""
    from coldforge.tuner.report.material import Axis, _order

    values = sorted(["b", 2.5, True, 3, "a", 0], key=_order)
    assert values == [0, True, 2.5, 3, "a", "b"]
    assert Axis("X", tuple(values)).texts == ["0", "True", "2.5", "3", "a", "b"]


def test_a_winner_of_an_earlier_stage_is_not_taken_for_the_best() -> None:
    study = typical_study()
    configs = [{"EXTRA": 1}]
    record(study, {"other": configs}, [right(0.1)])
    story, _ = _page(study)
    assert not story.material.is_final
    assert story.material.best is not None
    assert story.material.best["template"] == "other"
    assert story.verdict.finalists == ()
    assert story.source is not None
    assert "cannot be rendered here" in story.source.note


def test_finals_of_an_older_study_have_their_intervals_in_the_details() -> None:
    study = new_study(InMemoryStorage(), defaults={"direct": {"A": 2}})
    record(study, {"direct": [{"A": i} for i in range(3)]}, [right(1.0), right(1.1), right(2.0)])
    details = [{"ci95_ms": [0.9, 1.1], "ratio_ci95": [1.0, 1.0]}, {"ratio_ci95": [1.02, 1.06]}]
    entries = [
        {"template": "direct", "config": {"A": i}, "time_ms": t, "details": d}
        for i, (t, d) in enumerate(zip([1.0, 1.1, 2.0], [*details, {}], strict=True))
    ]
    hold_finals(study, entries)
    story, _ = _page(study)
    assert [(f.place, f.role) for f in story.verdict.finalists] == [
        *(("leader", "winner"), ("slower", "finalist"), ("", "default"))
    ]
    assert any("takes 1.020 to 1.060 times as long" in s for s in story.sentences)


def test_a_tie_for_few_rounds_alone_says_so() -> None:
    study = new_study(InMemoryStorage(), defaults={"direct": {"A": 0}})
    record(study, {"direct": [{"A": i} for i in range(2)]}, [right(1.0), right(1.5)])
    entries = [{"template": "direct", "config": {"A": i}, "time_ms": 1.0 + i / 2} for i in range(2)]
    hold_finals(study, entries)
    finals = study.finals
    deciding = {"level": 0.99, "interval": [1.0, 1.9], "p": 0.25, "too_few_rounds": True}
    finals[1] |= {"standing": "tied", "ratio": 1.5, "ratio_deciding": deciding}
    study.set_winner(study.winner or {}, finals)
    story, page = _page(study)
    words = "may be as fast (too few independent rounds to say)"
    assert story.verdict.finalists[1].standing == words
    assert words in page


def test_a_failed_default_and_a_failed_finalist() -> None:
    study = new_study(InMemoryStorage(), defaults={"direct": {"A": 0}})
    results = [failed(TrialOutcome.CRASH, "signal 11"), right(1.0), right(1.5)]
    record(study, {"direct": [{"A": i} for i in range(3)]}, results)
    entries: list[dict[str, Any]] = [
        {"template": "direct", "config": {"A": 1}, "time_ms": 1.0},
        {"template": "direct", "config": {"A": 2}, "time_ms": None, "outcome": "crash", "reason": "gone"},
    ]
    hold_finals(study, entries)
    story, page = _page(study)
    assert any("The default config is not right here (crash)" in s for s in story.sentences)
    assert [f.standing for f in story.verdict.finalists] == ["the winner", "failed: gone"]
    assert "failed: gone" in page


@pytest.mark.parametrize(
    ("resources", "launch", "expected"),
    [
        # Of the CUDA occupancy calculator, compute capability 9.0.
        ({"registers": 128}, {"block": 128}, (0.25, 4, 16, "registers")),
        ({"registers": 32}, {"block": 1024}, (1.0, 2, 64, "registers")),
        ({"registers": 24}, {"block": 32}, (0.5, 32, 32, "blocks")),
        ({"registers": 16}, {"block": 256, "shared_bytes": 100_000}, (0.25, 2, 16, "shared memory")),
        ({"registers": 16, "shared_bytes": 48_000}, {"block": 96}, (0.1875, 4, 12, "shared memory")),
        ({"registers": 255}, {"block": 384}, None),
        ({"registers": 0}, {"block": 128}, None),
        ({"registers": 32}, {}, None),
        ({"registers": 32}, {"block": "many"}, None),
    ],
)
def test_occupancy(resources: dict[str, int], launch: dict[str, Any], expected: Any) -> None:
    found = occupancy_of(resources, launch, cuda_target("sm_90").attributes)
    assert found == (None if expected is None else Occupancy(*expected))


def test_figures_that_are_missing_are_no_trouble() -> None:
    """An older study: no floor, no launch, no attributes of its device."""
    target = {"kind": "cuda", "arch": "sm_90", "device": "A GPU"}
    study = new_study(InMemoryStorage(), target=None, operator="gone", operator_digest="x")
    assert study.about["operator"] == "gone"
    from coldforge.tuner.outcome import TrialResult

    record(study, {"direct": [{"A": 1}, {"A": 2}]}, [TrialResult(TrialOutcome.OK, time_ms=1.0)] * 2)
    story, page = _page(study)
    assert story.roofline.reason.endswith("not known: the operator gone is not declared on this machine.")
    assert "its speed was not recorded" in page
    assert any("--templates DIR" in step.command for step in story.commands)
    about = {**study.about, "target": target}
    study._study.set_user_attr("about", about)
    assert "No right config of this study has a compiler" in tell(study).no_resources


def test_why_there_is_no_share_of_the_devices_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    result = right(1.0, floor_ms=0.0)
    result.details["floor"]["cache_resident"] = True
    study = new_study(InMemoryStorage())
    record(study, {"direct": [{"A": 1}]}, [result])
    resident = "the tensors fit the device&#39;s cache, so its memory sets no least time"
    assert f"<small>{resident}</small>" in _page(study)[1]
    monkeypatch.setattr(Declared, "flops", None)
    page = _page(study)[1]
    assert f"<small>{resident}; the operator&#39;s declaration counts no arithmetic</small>" in page
    assert "There is no roofline. The operator&#39;s declaration counts no arithmetic." in page


def test_a_declaration_that_changed_since() -> None:
    study = new_study(InMemoryStorage(), operator_digest="another")
    record(study, {"direct": [{"A": 1}]}, [right(1.0)])
    story = tell(study)
    assert "has changed since it was tuned" in story.roofline.reason
    assert story.source is not None
    assert "has changed since it was tuned" in story.source.note


# --- the commands ---


def test_the_commands_run_as_they_stand() -> None:
    story = tell(typical_study())
    commands = [step.command for step in story.commands]
    assert commands[0] == f"coldforge tune {OP} --target cpu --workload small --trials 30"
    words = commands[2].split()
    assert words[:2] == ["coldforge", "render"]
    assert run(words[1:]) == 0
    assert commands[3] == f"coldforge freeze {OP}"


def test_what_reads_a_database_is_told_that_it_must_be_named() -> None:
    study = typical_study()
    alone, shared = tell(study), tell(study, shared=True)
    lines = [step.command for step in shared.commands]
    assert lines[1] == f"{alone.commands[1].command} --storage URL"
    assert f"coldforge freeze {OP} --storage URL" in lines
    assert [line for line in lines if "--storage" not in line] == [
        alone.commands[i].command for i in (0, 2, 4)
    ]
    assert any("URL is the database" in note for note in shared.command_notes)
    assert not any("URL" in note for note in alone.command_notes)


def test_overridden_sizes_dtype_and_class_are_in_the_commands() -> None:
    from report_studies import problem_of

    problem = problem_of("small", N=1, H=20)
    study = new_study(InMemoryStorage(), problem=problem, precision="tf32")
    record(study, {"direct": [{"A": 1}]}, [right(1.0)])
    command = tell(study).commands[0].command
    assert "--workload small --shape N=1,H=20 --precision tf32" in command


# --- text that came from outside ---


def test_text_from_outside_is_escaped() -> None:
    _, page = _page(hostile_study())
    assert "<script>window" not in page
    assert len(re.findall(r"<script[\s>]", page)) == page.count("</script>") == 3
    assert "</pre></script>" not in page
    assert "&lt;script&gt;window.pwned" in page
    assert "\\u003cscript\\u003ewindow.pwned" in page
    assert json.dumps(_data(page)).count(EVIL) > 60


# --- the command line ---


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with one study."""
    folder = tmp_path_factory.mktemp("home")
    storage = open_storage(None, folder)
    assert storage is not None
    import_studies(storage, _records(typical_study()))
    return folder


@pytest.fixture
def home(stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to write in."""
    monkeypatch.setenv("COLDFORGE_HOME", str(stored))
    return tmp_path


def _records(study: Study) -> dict[str, Any]:
    return study_records(study._study._storage, [study.name])


def test_the_command_writes_a_page_and_tells(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = home / "new" / "report.html"
    assert run(["report", OP, "-o", str(path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["file"] == str(path)
    assert document["bytes"] == path.stat().st_size
    assert document["best"]["time_ms"] == pytest.approx(0.88)
    assert document["provisional"] is False
    assert document["sentences"][0].startswith("The winner takes")
    before = path.read_bytes()
    assert run(["report", OP, "--output", str(path)]) == 0
    assert "MB, of conv2d" in capsys.readouterr().out
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nope", "-o", "x.html"], "unknown study 'nope'"),
        ([OP], "Missing option '-o'"),
        ([OP, "-o", "."], "is a folder"),
        ([OP, "-o", "/dev/null"], "/dev/null is no file"),
        ([OP, "-o", "file/x.html"], "is a file, not a folder"),
        ([OP, "-o", "a" * 300], "File name too long"),
        ([OP, "-o", "x.html", "--storage", "nonsense"], "storage URL 'nonsense' is malformed"),
        ([OP, "-o", "x.html", "--from", "none.zip"], "none.zip"),
        ([OP, "-o", "x.html", "--from", "file"], "file"),
        ([OP, "-o", "x.html", "--from", "file", "--storage", "x"], "give one of them"),
    ],
)
def test_bad_input_is_one_line(
    home: Path,
    arguments: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(home)
    (home / "file").write_text("x")
    assert run(["report", *arguments]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert len(captured.err.strip().splitlines()) == 1
    assert captured.out == ""
    assert not (home / "x.html").exists()


def test_a_write_that_fails_leaves_the_old_file(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = home / "report.html"
    path.write_text("old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("coldforge.codegen.atomic.os.fsync", full)
    assert run(["report", OP, "-o", str(path)]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert path.read_text() == "old"
    assert [p.name for p in home.iterdir()] == ["report.html"]


def test_a_missing_library_is_one_line(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from coldforge.tuner.cli import report

    monkeypatch.setattr(report, "_NEEDS", {"no_such_module_here": "vl-convert-python"})
    assert run(["report", OP, "-o", str(home / "x.html")]) == 2
    line = capsys.readouterr().err
    assert len(line.strip().splitlines()) == 1
    assert line.strip().endswith("vl-convert-python is not installed: pip install vl-convert-python")


def test_a_bundle_carries_what_a_report_needs(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from coldforge.codegen.freeze import write_bundle
    from coldforge.tuner.winners import study_winner

    study = typical_study()
    winner = study_winner(study)
    assert winner is not None
    write_bundle(tmp_path / "winners.zip", [winner], _records(study))
    page = tmp_path / "carried.html"
    assert run(["report", OP, "--from", str(tmp_path / "winners.zip"), "-o", str(page)]) == 0
    assert "carried.html" in capsys.readouterr().out
    assert page.read_text() == render_page(tell(study))


def test_finals_that_energy_decided() -> None:
    study = typical_study()
    finals, winner = study.finals, study.winner
    assert winner is not None
    for rank, row in enumerate(finals):
        row |= {"energy_j": 0.01 + rank / 1000, "energy_ci95_j": [0.0099 + rank / 1000, 0.0101 + rank / 1000]}
    finals[1]["standing"] = "slower"
    study.set_winner({**winner, "objective": "energy"}, finals)
    story, page = _page(study)
    assert story.verdict.objective == "energy"
    text = "\n".join(story.sentences)
    assert "Energy decided: a launch of the winner takes 10 mJ (95% interval 9.9 to 10.1), the least" in text
    assert "times (0.991 to 1.011) the energy, by the ratios within rounds" in text
    assert [f.standing for f in story.verdict.finalists[:2]] == ["the winner, the least energy", "takes more"]
    charts = [chart["id"] for chart in _data(page)["charts"]]
    assert [name for name in charts if name.startswith("finals")] == ["finals-energy", "finals"]
    assert _data(page)["finals"][1]["mj"] == 11.0
    assert "<th>mJ a launch</th>" in page
