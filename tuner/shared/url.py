# SPDX-License-Identifier: Apache-2.0
"""Storage URLs: which driver they mean, and how their password is kept out of everything that is written."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

import sqlalchemy.exc
from sqlalchemy.engine import URL, make_url

from ...codegen.errors import InputError

_EXAMPLE = "sqlite:////path/studies.db or postgresql://user@host/name"
_DRIVER = "postgresql+psycopg"
_POSTGRESQL = ("postgresql", "postgres", _DRIVER)
_PASSWORD = "password"
_VARIABLE = "PGPASSWORD"


def storage_url(text: str, environ: MutableMapping[str, str] | None = None) -> URL:
    """Reads a storage URL; the driver of a ``postgresql://`` one is psycopg, if it names none.

    A password in a PostgreSQL URL moves to ``PGPASSWORD`` of this process, where libpq looks for it: from
    then on no error text, no command line of a child and no engine holds it. Better it never was in the URL.

    Args:
        environ: takes the password; ``os.environ`` when not given.

    Raises:
        InputError: the URL is malformed. The message does not repeat a password.
    """
    try:
        url = make_url(text)
    except (sqlalchemy.exc.ArgumentError, ValueError):  # a port that is no number is a ValueError
        raise InputError(f"storage URL {_harmless(text)!r} is malformed; expected e.g. {_EXAMPLE}") from None
    if url.drivername in _POSTGRESQL:
        url = url.set(drivername=_DRIVER)
    if url.get_backend_name() != "postgresql":
        return url
    given = url.password or url.query.get(_PASSWORD)
    if given:
        env = os.environ if environ is None else environ
        env[_VARIABLE] = str(given if isinstance(given, str) else given[0])
    kept = URL.create(url.drivername, url.username, None, url.host, url.port, url.database)
    return kept.set(query={name: value for name, value in url.query.items() if name != _PASSWORD})


def plain_url(text: str) -> str:
    """A storage URL without its password, as `storage_url` leaves it: fit for a child's command line.

    Raises:
        InputError: it is malformed.
    """
    return storage_url(text).render_as_string(hide_password=False)


def shown_url(url: URL) -> str:
    """A URL for messages: its password, where one is left, is masked."""
    if url.drivername == _DRIVER:
        url = url.set(drivername="postgresql")
    return url.render_as_string(hide_password=True)


def _harmless(text: str) -> str:
    """A malformed URL as a message may quote it: what may be credentials is left out."""
    head, mark, rest = text.partition("://")
    if "password=" in rest:
        rest = rest.partition("?")[0] + "?..."
    if "@" in rest:
        rest = "...@" + rest.rpartition("@")[2]
    return f"{head}{mark}{rest}"[:200]
