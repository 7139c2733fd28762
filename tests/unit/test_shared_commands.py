# SPDX-License-Identifier: Apache-2.0
"""The commands that look at studies, and `optuna-dashboard`, on a study that is on a PostgreSQL server."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest
from coldforge.tuner.cli import run
from coldforge.tuner.records import watching
from coldforge.tuner.shared.record import SharedRecord
from coldforge.tuner.shared.storage import SharedStorage
from coldforge.tuner.storage import is_embedded, open_storage
from coldforge.tuner.study import Study
from postgres import SECRET, SECRET_USER, Server
from pretend import SMALL, Bench, make_plan


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    started = Server()
    yield started
    started.stop()


@pytest.fixture(scope="module")
def studied(server: Server, tmp_path_factory: pytest.TempPathFactory) -> tuple[SharedStorage, Study, Bench]:
    """A study that a run of two, on the server, has searched to its end."""
    folder = tmp_path_factory.mktemp("studied")
    storage = open_storage(server.url(), folder)
    assert isinstance(storage, SharedStorage)
    bench = Bench(folder, make_plan(folder, **SMALL))
    bench.storage = storage
    with SharedRecord(storage, bench.study.of_optuna, bench.plan.feasible()) as record:
        bench.record, bench.store = record, record.store
        assert bench.tune(trials=10) == "ok"
    return storage, bench.study, bench


def test_a_run_claims_what_it_tries(studied: tuple[SharedStorage, Study, Bench]) -> None:
    storage, study, bench = studied
    assert not is_embedded(storage)
    trials = study.of_optuna.get_trials(deepcopy=False)
    assert len(trials) == len(study.trials()) == 10
    assert len({trial.system_attrs["coldforge:worker"] for trial in trials}) == 1
    assert len(bench.worker.measured) == 10
    assert study.winner_is_current(10)


def test_more_trials_take_first_what_was_given_back(studied: tuple[SharedStorage, Study, Bench]) -> None:
    storage, study, bench = studied
    feasible = bench.plan.feasible()
    done = {trial.system_attrs["coldforge:key"] for trial in study.trials()}
    last = [point.key for point in feasible.points if point.key not in done][-1]
    with SharedRecord(storage, study.of_optuna, feasible) as other:
        assert other.claim(last)
    with SharedRecord(storage, study.of_optuna, feasible) as record:
        bench.record, bench.store = record, record.store
        bench.worker.measured.clear()
        assert bench.tune(trials=11) == "ok"
    assert bench.worker.measured == [last]
    assert len(study.of_optuna.get_trials(deepcopy=False)) == len(study.trials()) == 11


def _said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert run([*arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.usefixtures("studied")
def test_they_read_it(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLDFORGE_HOME", str(tmp_path))
    monkeypatch.delenv("PGPASSWORD", raising=False)
    secret = server.url(SECRET_USER).replace("@", f":{SECRET}@")
    place = ["--storage", secret]
    assert len(json.loads(_said(capsys, "show", *place, "--json"))["studies"]) == 1
    operator = "conv2d_divide_leaky_relu"
    shown = json.loads(_said(capsys, "show", operator, *place, "--json"))
    assert shown["finished"] >= 10
    assert "finals held" in _said(capsys, "show", operator, *place, "--follow").splitlines()[-1]
    exported = _said(capsys, "export", operator, *place, "--format", "json")
    assert len(json.loads(exported)["trials"]) == shown["finished"]
    page = tmp_path / "report.html"
    _said(capsys, "report", operator, *place, "-o", str(page))
    bundle = tmp_path / "bundle.zip"
    _said(capsys, "freeze", operator, *place, "--bundle", str(bundle))
    for text in (exported, page.read_text(), bundle.read_bytes().decode("latin-1"), str(shown)):
        assert SECRET not in text


def test_whether_anybody_works_on_it(studied: tuple[SharedStorage, Study, Bench], tmp_path: Path) -> None:
    storage, study, bench = studied
    watched = watching(storage, tmp_path, study)
    assert watched() is False
    with SharedRecord(storage, study.of_optuna, bench.plan.feasible()) as record:
        free = [p.key for p in bench.plan.feasible().points if p.key not in bench.worker.measured]
        assert any(record.claim(key) for key in free)
        assert watched() is True
        record.close()
        assert watched() is False
        held, done = threading.Event(), threading.Event()

        def hold() -> None:
            with record.finals():
                held.set()
                done.wait(30)

        thread = threading.Thread(target=hold)
        thread.start()
        assert held.wait(30)
        assert watched() is True
        done.set()
        thread.join()


def test_an_empty_database_has_no_studies_and_stays_empty(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    url = server.new_database("empty")
    assert json.loads(_said(capsys, "show", "--storage", url, "--json")) == {"studies": []}
    assert server.sql("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'", "empty") == "0"


def test_without_its_password_it_is_one_line(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PGPASSWORD", "wrong-one")
    assert run(["show", "--storage", server.url(SECRET_USER)]) == 1
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert "password" in said
    assert "wrong-one" not in said


def test_a_password_file_is_read(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PGPASSWORD", raising=False)
    file = tmp_path / "pgpass"
    file.write_text(f"127.0.0.1:{server.port}:*:{SECRET_USER}:{SECRET}\n")
    file.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(file))
    _said(capsys, "show", "--storage", server.url(SECRET_USER), "--json")
    service = tmp_path / "services"
    service.write_text(
        f"[mine]\nhost=127.0.0.1\nport={server.port}\nuser={SECRET_USER}\npassword={SECRET}\ndbname=studies\n"
    )
    monkeypatch.delenv("PGPASSFILE")
    monkeypatch.setenv("PGSERVICEFILE", str(service))
    _said(capsys, "show", "--storage", "postgresql:///?service=mine", "--json")


def _asked(application: Any, path: str) -> Any:
    environment: dict[str, Any] = {"PATH_INFO": path, "wsgi.input": io.BytesIO()}
    setup_testing_defaults(environment)
    status: list[str] = []
    body = b"".join(application(environment, lambda line, headers, *_: status.append(line)))
    assert status[0].startswith("200"), status
    return json.loads(body)


def test_the_dashboard_opens_it(server: Server, studied: tuple[SharedStorage, Study, Bench]) -> None:
    dashboard = pytest.importorskip("optuna_dashboard")
    application = dashboard.wsgi(server.url().replace("postgresql:", "postgresql+psycopg:"))
    (summary,) = _asked(application, "/api/studies")["study_summaries"]
    detail = _asked(application, f"/api/studies/{summary['study_id']}")
    states = [trial["state"] for trial in detail["trials"]]
    assert states.count("Complete") == len(studied[1].trials())
