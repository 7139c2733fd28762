# SPDX-License-Identifier: Apache-2.0
"""What a worker makes of the study that it joins: the same plan, a study beside it, or a refusal."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
import sqlalchemy.exc
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.errors import InputError, UnknownName
from coldforge.codegen.problem import make_problem
from coldforge.codegen.target import Target
from coldforge.tuner.backends import toolchain_of
from coldforge.tuner.cli import run
from coldforge.tuner.equipment import TuneOptions
from coldforge.tuner.joining import (
    Request,
    clock_of,
    declarations,
    plan_here,
    read_request,
    request_of,
    study_to_join,
)
from coldforge.tuner.plan import plan_study
from coldforge.tuner.shared.patience import Patience
from coldforge.tuner.shared.storage import SharedStorage
from coldforge.tuner.study import Study, open_study

OP = "conv2d_divide_leaky_relu"
CPU = Target("cpu", "x86-64-v3", "a CPU", {"threads": 2, "llc_bytes": 1 << 25, "vector_bytes": 32})
OTHER = Target("cpu", "x86-64-v2", "another CPU", {"threads": 4, "llc_bytes": 1 << 24, "vector_bytes": 16})
HEADER = "cpu_conv2d.hpp"
REQUEST = Request("direct", 40, None, "random", 3, 256)


@pytest.fixture
def storage() -> optuna.storages.BaseStorage:
    return optuna.storages.InMemoryStorage()


def _study(storage: optuna.storages.BaseStorage, request: Request | None = REQUEST, **change: Any) -> Study:
    problem = make_problem(catalogue().operator(OP), "small", {"N": 2})
    plan = plan_study(catalogue(), problem, "fp32", CPU, toolchain_of(CPU), "direct")
    study = open_study(storage, dataclasses.replace(plan.inputs(), **change))
    if request is not None:
        study.ask_for(request.to_dict())
    return study


def test_a_like_machine_makes_the_same_plan(storage: optuna.storages.BaseStorage) -> None:
    study = _study(storage)
    found = study_to_join(storage, None)
    request = read_request(found)
    assert (found.name, request) == (study.name, REQUEST)
    plan = plan_here(found, declarations(found, catalogue(), False), CPU, request)
    assert plan.inputs().name == study.name
    assert plan.problem.dims["N"] == 2


def test_another_device_works_beside(storage: optuna.storages.BaseStorage) -> None:
    study = _study(storage)
    plan = plan_here(study, catalogue(), OTHER, REQUEST)
    assert plan.inputs().name != study.name
    assert plan.target == OTHER


def test_another_kind_of_device_is_refused(storage: optuna.storages.BaseStorage) -> None:
    with pytest.raises(InputError, match="is of cpu; this device is cuda"):
        plan_here(_study(storage), catalogue(), dataclasses.replace(CPU, kind="cuda"), REQUEST)


def _changed(sources: Mapping[str, str]) -> dict[str, str]:
    return {name: "0" if name.endswith(HEADER) else digest for name, digest in sources.items()}


@pytest.mark.parametrize("target", [CPU, OTHER])
@pytest.mark.parametrize("field", ["operator_digest", "verification", "sources"])
def test_another_coldforge_is_refused_on_any_device(
    storage: optuna.storages.BaseStorage, target: Target, field: str
) -> None:
    sources = _study(optuna.storages.InMemoryStorage()).about["sources"]
    study = _study(storage, **{field: _changed(sources) if field == "sources" else "other"})
    named = f".*{HEADER}" if field == "sources" else field.replace("_", " ")
    with pytest.raises(InputError, match=f"begun with another {named} than this machine has"):
        plan_here(study, catalogue(), target, REQUEST)


def test_another_compiler_is_refused_on_the_same_device_alone(storage: optuna.storages.BaseStorage) -> None:
    study = _study(storage, compiler="g++ 1")
    with pytest.raises(InputError, match="another compiler"):
        plan_here(study, catalogue(), CPU, REQUEST)
    plan_here(study, catalogue(), OTHER, REQUEST)


def test_which_study(storage: optuna.storages.BaseStorage) -> None:
    with pytest.raises(InputError, match="no study to join yet; begin one: coldforge tune"):
        study_to_join(storage, None)
    silent = _study(storage, None, compiler="g++ 1")
    with pytest.raises(InputError, match="no study to join yet"):
        study_to_join(storage, None)
    with pytest.raises(InputError, match="asks nothing of workers"):
        study_to_join(storage, silent.name)
    with pytest.raises(UnknownName):
        study_to_join(storage, "nothing")
    older, newer = _study(storage, compiler="g++ 2"), _study(storage, compiler="g++ 3")
    older.touch()
    newer.touch()
    assert study_to_join(storage, None).name == newer.name
    assert study_to_join(storage, older.name).name == older.name
    older.touch()
    assert study_to_join(storage, None).name == older.name


def test_what_is_asked_of_a_worker() -> None:
    asked = request_of(TuneOptions(None, 100.0, "random", 3, spill_limit_bytes=None), "direct", 1000.0)
    options = asked.options(1060.0)
    assert (options.trials, options.time_budget_s, options.sampler, options.seed) == (None, 40.0, "random", 3)
    assert (options.spill_limit_bytes, options.finals) == (None, False)
    assert options.salt
    assert asked.options(2000.0).time_budget_s == -900.0


def test_a_damaged_request_is_one_line(storage: optuna.storages.BaseStorage) -> None:
    study = _study(storage, None)
    study.ask_for({**REQUEST.to_dict(), "trials": "many"})
    with pytest.raises(Exception, match="request is damaged"):
        read_request(study)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "there is no study to join yet"),
        (["--study", "x"], "unknown study 'x'"),
        (["--storage", "sqlite:///{home}/none.db"], "there is no study to join yet"),
        (
            ["--storage", "postgresql://nobody@127.0.0.1:1/x"],
            "cannot open storage postgresql://nobody@127.0.0.1:1/x",
        ),
    ],
)
def test_the_command_says_in_one_line_why_it_cannot(
    arguments: list[str],
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLDFORGE_HOME", str(tmp_path))
    code = run(["worker", *(word.format(home=tmp_path) for word in arguments)])
    said = capsys.readouterr().err.strip()
    assert code == (1 if "postgresql" in said else 2)
    assert len(said.splitlines()) == 1
    assert why in said
    assert not list(tmp_path.iterdir()), "nothing is made"


def test_a_worker_that_comes_while_the_server_is_away_waits_for_its_clock() -> None:
    now, told, asked = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC), [], []

    def connect() -> Any:
        asked.append(1)
        if len(asked) == 1:
            raise sqlalchemy.exc.OperationalError("SELECT", {}, ConnectionRefusedError("refused"))
        answer = SimpleNamespace(scalar_one=lambda: now)
        return contextlib.nullcontext(SimpleNamespace(execute=lambda question: answer))

    storage: Any = object.__new__(SharedStorage)
    storage.patience = Patience("the server", 60.0, told.append)
    storage.engine = SimpleNamespace(dialect=SimpleNamespace(name="postgresql"), connect=connect)
    assert clock_of(storage) == now.timestamp()
    assert len(asked) == 2
    assert "does not answer" in told[0]
