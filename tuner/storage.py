# SPDX-License-Identifier: Apache-2.0
"""Where studies live: an embedded SQLite file in write-ahead mode, or any database that Optuna takes by
URL.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import optuna
import sqlalchemy.exc
from optuna.exceptions import OptunaError, StorageInternalError
from optuna.storages import BaseStorage, RDBStorage
from optuna.storages._rdb import models
from sqlalchemy.engine import URL

from ..codegen.errors import InputError
from ..codegen.settings import load_settings
from .bulk_storage import BulkStorage
from .shared.url import shown_url, storage_url
from .storage_errors import storage_error

_BUSY_TIMEOUT_S = 30
_FIRST_OPEN_ATTEMPTS = 5
_HEADER_BYTES = 100
"""Of an SQLite file."""


def default_url(home: Path) -> str:
    """The URL of the embedded storage under ``home``."""
    return f"sqlite:///{home / 'studies.db'}"


def open_storage(url: str | None, home: Path, *, create: bool = True) -> BaseStorage | None:
    """Opens the storage.

    Args:
        url: a database URL; the embedded one under ``home`` when not given. A password in it goes to this
            process's environment: see `storage_url`.
        home: coldforge's folder.
        create: whether a missing SQLite file, or the tables that a database lacks, are made. When not, None
            stands for it, and of a file that may only be read a copy is opened.

    Raises:
        InputError: the URL is malformed, its driver is not installed, or its file is damaged or may not be
            written.
        ColdforgeError: the database cannot be opened otherwise.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    place = storage_url(default_url(home) if url is None else url)
    shown = shown_url(place)
    if place.get_backend_name() != "sqlite":
        return _opened(lambda: _shared(place, create), shown)
    if not place.database:  # in memory
        return _opened(lambda: BulkStorage(place.render_as_string()), shown)
    path = Path(place.database)
    if not create and not _is_there(path):
        return None
    used = path if create or _writable(path) else _copy(path)
    _refuse_foreign(used, path)
    _write_ahead(used)
    text = place.set(database=str(used)).render_as_string()
    engine = {"connect_args": {"timeout": _BUSY_TIMEOUT_S}}
    return _opened(lambda: BulkStorage(text, engine_kwargs=engine), shown)


def _shared(place: URL, create: bool) -> BaseStorage | None:
    from .shared.storage import open_shared  # it needs what the extra `postgres` brings

    return open_shared(place, create=create, grace_s=load_settings().grace_s)


def is_embedded(storage: BaseStorage | None) -> bool:
    """Whether it is a file, which only this machine's processes write."""
    engine = getattr(storage, "engine", None)
    return engine is not None and engine.dialect.name == "sqlite"


@contextlib.contextmanager
def storage_faults(storage: BaseStorage | None = None) -> Iterator[None]:
    """Around reads and writes of an open storage: a database that fails (a full or read-only disk, a damaged
    file, a lost connection) is one line, not a traceback.

    Args:
        storage: which, for the message.

    Raises:
        InputError: its file is damaged, or may not be written.
        ColdforgeError: it failed otherwise.
    """
    try:
        yield
    except (sqlalchemy.exc.SQLAlchemyError, StorageInternalError) as error:
        file = _file_of(storage)
        doing = f"the studies{f' in {file}' if file else ''} cannot be read or written"
        raise storage_error(doing, error, file or "FILE") from error


def _file_of(storage: BaseStorage | None) -> str | None:
    if isinstance(storage, RDBStorage) and is_embedded(storage):
        return storage.engine.url.database
    return None


def _is_there(path: Path) -> bool:
    try:
        if path.exists():
            return True
        above = next((folder for folder in path.absolute().parents if folder.exists()), path)
        if not above.is_dir():
            raise InputError(f"cannot open the studies in {path}: {above} is a file, not a folder")
        return False
    except OSError as error:  # a name that no file can have
        raise InputError(f"cannot open the studies in {path}: {error.strerror or error}") from None


def _refuse_foreign(path: Path, shown: Path) -> None:
    """Refuses another program's database: opening it as ours would add tables to it.

    Args:
        shown: what a message calls it.

    Raises:
        InputError: it has tables, and none of Optuna's; or it is damaged, or may not be read.
        ColdforgeError: it cannot be read otherwise.
    """
    if not path.is_file() or path.stat().st_size == 0:
        return
    try:
        if path.stat().st_size < _HEADER_BYTES:  # SQLite takes a file of one byte for an empty one
            short = sqlite3.DatabaseError("file is not a database")
            short.sqlite_errorcode = sqlite3.SQLITE_NOTADB
            raise short
        with contextlib.closing(sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S)) as connection:
            # Tables alone: indexes have names of SQLite's own.
            tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            names = {name for (name,) in tables if not name.startswith("sqlite_")}
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise storage_error(f"cannot open the studies in {shown}", error, str(shown)) from error
    # Some of which another process may be making just now.
    optunas = {*models.BaseModel.metadata.tables, "alembic_version"}
    if not {"version_info", "studies"} <= names and names - optunas:
        raise InputError(f"{shown} is another program's database, not one of studies; name another file")


def _writable(path: Path) -> bool:
    return os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)


def _copy(path: Path) -> Path:
    """A copy of a database that may only be read, for this process: SQLite makes files beside one it reads.

    Raises:
        ColdforgeError: it cannot be read, or there is no room for the copy.
    """
    try:
        folder = tempfile.mkdtemp(prefix="coldforge-studies-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        for name in (path.name, f"{path.name}-wal"):
            if (path.parent / name).exists():
                shutil.copyfile(path.parent / name, Path(folder) / name)
    except OSError as error:
        raise storage_error(f"cannot read the studies in {path}", error) from error
    return Path(folder) / path.name


def _write_ahead(path: Path) -> None:
    """Makes the file, in write-ahead mode: readers never wait for the writer, a killed writer loses nothing
    committed.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
    except (OSError, sqlite3.Error) as error:
        raise storage_error(f"cannot open the studies in {path}", error, str(path)) from error


def _opened(make: Callable[[], BaseStorage | None], shown: str) -> BaseStorage | None:
    for attempt in range(_FIRST_OPEN_ATTEMPTS):
        try:
            return make()
        except ImportError as error:
            hint = "; pip install 'coldforge[postgres]'" if shown.startswith("postgresql:") else ""
            why = f"it needs packages that are not installed ({_first_line(error)}){hint}"
            raise InputError(f"storage {shown}: {why}") from None
        except (sqlalchemy.exc.NoSuchModuleError, sqlalchemy.exc.ArgumentError) as error:
            raise InputError(f"storage {shown}: {_first_line(error)}") from None
        except (sqlalchemy.exc.SQLAlchemyError, OptunaError, RuntimeError) as error:
            # Two processes that open a fresh database at once both try to make the tables; the loser tries
            # again.
            if attempt == _FIRST_OPEN_ATTEMPTS - 1:
                raise storage_error(f"cannot open storage {shown}", error) from error
            time.sleep(0.1 * 2**attempt)
    raise AssertionError("unreachable")


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
