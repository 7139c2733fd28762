# SPDX-License-Identifier: Apache-2.0
"""Storage URLs: the driver, and where a password goes."""

from __future__ import annotations

from pathlib import Path

import pytest
from coldforge.codegen.errors import InputError
from coldforge.tuner.cli import run
from coldforge.tuner.shared.url import shown_url, storage_url

SECRET = "s3cret-Pa55word"


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_postgresql_means_psycopg(scheme: str) -> None:
    url = storage_url(f"{scheme}://u@h:5433/d?service=x", {})
    assert url.render_as_string() == "postgresql+psycopg://u@h:5433/d?service=x"
    assert shown_url(url) == "postgresql://u@h:5433/d?service=x"


def test_others_stay_as_they_are() -> None:
    for text in ("sqlite:////tmp/a.db", "mysql+pymysql://u@h/d", "postgresql+psycopg2://u@h/d"):
        assert storage_url(text, {}).render_as_string(hide_password=False) == text


@pytest.mark.parametrize(
    "text", [f"postgresql://u:{SECRET}@h/d", f"postgresql://u@h/d?password={SECRET}&connect_timeout=3"]
)
def test_a_password_moves_to_the_environment(text: str) -> None:
    environment = {"PGPASSWORD": "older"}
    url = storage_url(text, environment)
    assert environment == {"PGPASSWORD": SECRET}
    assert SECRET not in url.render_as_string(hide_password=False)
    assert (url.username, url.host, url.database) == ("u", "h", "d")
    assert ("connect_timeout" in url.query) == ("connect_timeout" in text)


def test_a_password_of_the_environment_stays() -> None:
    environment = {"PGPASSWORD": "mine"}
    storage_url("postgresql://u@h/d", environment)
    assert environment == {"PGPASSWORD": "mine"}


@pytest.mark.parametrize(
    "text", [f"postgresql://u:{SECRET}@h:port/d", f"postgresql://h:port/d?password={SECRET}", "no url"]
)
def test_a_malformed_url_is_refused_without_its_password(text: str) -> None:
    with pytest.raises(InputError, match="malformed") as caught:
        storage_url(text, {})
    assert SECRET not in str(caught.value)
    assert SECRET not in str(caught.value.__context__.__class__.__name__)


def test_the_password_of_another_database_is_masked() -> None:
    assert SECRET not in shown_url(storage_url(f"mysql+pymysql://u:{SECRET}@h/d", {}))


@pytest.mark.parametrize("command", ["tune conv2d_mish --target cpu --trials 1", "show", "worker"])
def test_an_empty_url_is_none(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLDFORGE_HOME", str(tmp_path / "home"))
    assert run([*command.split(), "--storage", ""]) == 2
    assert "storage URL '' is malformed" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.db"))
