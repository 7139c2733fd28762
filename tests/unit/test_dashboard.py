# SPDX-License-Identifier: Apache-2.0
"""`optuna-dashboard` opens the file that studies are kept in: what its page asks its server for is answered
with our study, all trials of it."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest
from coldforge.tuner.identity import StudyInputs
from coldforge.tuner.outcome import TrialOutcome, TrialResult
from coldforge.tuner.search import FeasibleSet
from coldforge.tuner.storage import default_url, open_storage
from coldforge.tuner.study import open_study

dashboard = pytest.importorskip("optuna_dashboard")

FEASIBLE = FeasibleSet({"direct": [{"TILE": t, "KIND": k} for t in range(4) for k in ("plain", "[packed]")]})


def asked(application: Any, path: str) -> tuple[str, bytes]:
    """One request, without a socket."""
    environment: dict[str, Any] = {"PATH_INFO": path, "wsgi.input": io.BytesIO()}
    setup_testing_defaults(environment)
    status: list[str] = []
    body = application(environment, lambda line, headers, *_: status.append(line))
    return status[0], b"".join(body)


def test_it_opens_the_study_file(tmp_path: Path) -> None:
    storage = open_storage(None, tmp_path)
    assert storage is not None
    target = {"kind": "cpu", "arch": "x86-64-v3", "device": "CPU", "attributes": {}}
    problem = {"dtype": "fp32", "dims": {"N": 1}}
    study = open_study(
        storage, StudyInputs("op", "small", "d", problem, "fp32", target, {"direct": ""}, {}, "g")
    )
    for index in range(8):
        result = TrialResult(TrialOutcome.OK, time_ms=1.0 + index, error=1e-7, details={"floor_ms": 0.5})
        if index == 3:
            result = TrialResult(TrialOutcome.WRONG_RESULT, "off by [5]")
        study.record(FEASIBLE.points[index], result, FEASIBLE.distributions_of(index))
    application = dashboard.wsgi(default_url(tmp_path))
    status, page = asked(application, "/dashboard")
    assert status.startswith("200"), status
    assert b"<html" in page.lower()
    status, body = asked(application, "/api/studies")
    assert status.startswith("200"), status
    (summary,) = json.loads(body)["study_summaries"]
    assert summary["study_name"] == study.name
    status, body = asked(application, f"/api/studies/{summary['study_id']}")
    assert status.startswith("200"), status
    detail = json.loads(body)
    assert [trial["state"] for trial in detail["trials"]] == [*["Complete"] * 3, "Pruned", *["Complete"] * 4]
    assert detail["trials"][0]["values"] == [1.0]
    names = {parameter["name"] for parameter in detail["trials"][0]["params"]}
    assert "template" in names
    assert any("TILE" in name for name in names)
    # The dashboard wrote nothing that reading a study stumbles over.
    assert len(study.results()) == 8
