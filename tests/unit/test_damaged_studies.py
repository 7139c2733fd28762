# SPDX-License-Identifier: Apache-2.0
"""A study file that is damaged, a home that cannot be used: one line, exit code 2, and nothing is touched."""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
from pathlib import Path

import pytest
from coldforge.codegen.errors import InputError
from coldforge.codegen.home import writable_home
from coldforge.tuner.cli import run
from coldforge.tuner.storage import open_storage
from coldforge.tuner.storage_errors import storage_error
from coldforge.tuner.study import list_studies
from coldforge.tuner.transfer import study_records
from report_studies import OP, typical_study

PAGE = 4096


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    home = tmp_path_factory.mktemp("whole")
    storage = open_storage(None, home)
    assert storage is not None
    typical_study(storage)
    storage.remove_session()
    with sqlite3.connect(home / "studies.db") as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return (home / "studies.db").read_bytes()


def _foreign(whole: bytes) -> bytes:
    return random.Random(0).randbytes(len(whole))


def _cut(whole: bytes) -> bytes:
    return whole[: 5 * PAGE + 100]


def _overwritten(whole: bytes) -> bytes:
    return whole[: 2 * PAGE] + random.Random(1).randbytes(len(whole) - 2 * PAGE)


def _one_byte(whole: bytes) -> bytes:
    return whole[:1]


def _no_text(whole: bytes) -> bytes:
    return whole.replace(b"CREATE TABLE studies", b"CREATE TABLE stu\xffies")


@pytest.mark.parametrize("damage", [_foreign, _cut, _overwritten, _no_text, _one_byte])
@pytest.mark.parametrize(
    "command",
    [
        ["show"],
        ["show", OP],
        ["tune", OP, "--target", "cpu", "--trials", "1"],
        ["tune", OP, "--target", "cpu", "--trials", "1", "--storage", "URL"],
        ["show", OP, "--storage", "URL"],
        ["freeze", OP],
        ["freeze", OP, "--bundle", "winners.zip"],
        ["export", OP, "--format", "csv"],
        ["report", OP, "-o", "report.html"],
    ],
    ids=" ".join,
)
def test_a_damaged_file_is_said_to_be_and_left_alone(
    damage,
    command: list[str],
    whole: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLDFORGE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    file, damaged = tmp_path / "studies.db", damage(whole)
    assert damaged != whole
    file.write_bytes(damaged)
    if "URL" in command:
        file = file.rename(tmp_path / "named.db")
    assert run([f"sqlite:///{file}" if word == "URL" else word for word in command]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    for part in (str(file), "damaged", "left as it is", "move it away", ".recover"):
        assert part in err
    assert file.read_bytes() == damaged
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("table", ["study_user_attributes", "trial_user_attributes"])
@pytest.mark.parametrize("command", [["show", OP], ["export", OP, "--format", "csv"]])
def test_a_cell_that_holds_no_json_is_bad_input(
    table: str,
    command: list[str],
    whole: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The file is whole to SQLite, and what is written in it is not."""
    monkeypatch.setenv("COLDFORGE_HOME", str(tmp_path))
    file = tmp_path / "studies.db"
    file.write_bytes(whole)
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.execute(f"UPDATE {table} SET value_json = substr(value_json, 1, length(value_json) - 1)")
        connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = file.read_bytes()
    assert run(command) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "the database is damaged and was left as it is (JSONDecodeError" in err
    assert file.read_bytes() == content


def test_a_study_that_is_read_whole_may_be_damaged_too(whole: bytes, tmp_path: Path) -> None:
    """What a bundle carries of a study is read without its summary."""
    file = tmp_path / "studies.db"
    file.write_bytes(whole)
    storage = open_storage(None, tmp_path)
    assert storage is not None
    (study,) = list_studies(storage)
    assert set(study_records(storage, [study.name, "none"])) == {study.name}
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.execute("UPDATE trial_user_attributes SET value_json = '{'")
        connection.commit()
    with pytest.raises(InputError, match="the database is damaged"):
        study_records(open_storage(None, tmp_path), [study.name])
    opened = open_storage(None, tmp_path)
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.execute("DROP TABLE studies")
        connection.commit()
    with pytest.raises(InputError, match=r"cannot be read or written: .*no such table"):
        study_records(opened, [study.name])


def test_a_full_disk_is_no_bad_input() -> None:
    full = sqlite3.OperationalError("database or disk is full")
    full.sqlite_errorcode = sqlite3.SQLITE_FULL  # type: ignore[attr-defined]
    assert storage_error("cannot write", full).exit_code == 1
    refused = sqlite3.OperationalError("attempt to write a readonly database")
    refused.sqlite_errorcode = sqlite3.SQLITE_READONLY | 5 << 8  # type: ignore[attr-defined]
    assert "--storage names another place" in str(storage_error("cannot write", refused))
    assert storage_error("cannot write", refused).exit_code == 2


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/none"])
@pytest.mark.parametrize("command", [["tune", OP, "--target", "cpu"], ["bench", OP], ["check", OP]])
def test_a_home_that_cannot_be_made(
    place: str,
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").write_text("not a folder\n")
    home = tmp_path / place
    monkeypatch.setenv("COLDFORGE_HOME", str(home))
    assert run(command) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert f"cannot be kept in {home}: it " in err
    assert "set COLDFORGE_HOME to a folder that may be written" in err


def test_a_home_that_is_a_file_holds_no_studies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("not a folder\n")
    monkeypatch.setenv("COLDFORGE_HOME", str(tmp_path / "file"))
    assert run(["show"]) == 2
    assert "is a file, not a folder" in capsys.readouterr().err


def test_a_folder_in_the_home_that_may_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    assert writable_home(home) == home  # and is there now
    (home / "cache").mkdir()
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != home / "cache" and allowed(path, mode))
    with pytest.raises(InputError, match=r"cache may not be written; set COLDFORGE_HOME"):
        writable_home(home)
    (home / "cache").rmdir()
    (home / "cache").write_text("")
    with pytest.raises(InputError, match="cache may not be written"):
        writable_home(home)


def test_tables_that_are_just_being_made_are_ours(tmp_path: Path) -> None:
    file = tmp_path / "studies.db"
    with contextlib.closing(sqlite3.connect(file)) as connection:
        # Another process, half way through them.
        connection.execute(
            "CREATE TABLE studies (study_id INTEGER PRIMARY KEY, study_name VARCHAR(512) UNIQUE)"
        )
        connection.execute("CREATE UNIQUE INDEX ix_studies_study_name ON studies (study_name)")
        connection.commit()
    assert open_storage(f"sqlite:///{file}", tmp_path) is not None
