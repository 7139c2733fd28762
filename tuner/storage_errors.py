# SPDX-License-Identifier: Apache-2.0
"""What to say when the file of the studies fails, and whose fault it is: a file that is damaged or may not be
written is input that is not right; a full disk or another process's lock is not.

Nothing here, or in what raises these, removes or changes a damaged file: what it holds may be saved yet.
"""

from __future__ import annotations

import sqlite3

from optuna.exceptions import StorageInternalError

from ..codegen.errors import ColdforgeError, InputError

# A table or column that is missing is an SQLITE_ERROR like any statement that does not fit.
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
_REFUSED = (
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_AUTH,
)
_PRIMARY = 0xFF
"""The part of an error's code that is not the detail of it."""


def storage_error(doing: str, error: BaseException, file: str = "FILE") -> ColdforgeError:
    """The error to raise for one of the file system, of SQLite, or of what stands above it.

    Args:
        doing: what could not be done, and with what: "cannot open the studies in FILE".
        error: why.
        file: the studies' file, for advice.
    """
    fault = _sqlite_error(error)
    line = f"{doing}: {_first_line(fault or _cause(error))}"
    if isinstance(error, ValueError) or (fault is not None and _is_damage(fault)):
        return InputError(
            f"{line}; the file is damaged, and was left as it is. Put a copy in its place, or move it away "
            f"to begin anew (`sqlite3 {file} .recover` prints what can be saved)"
        )
    code = getattr(fault, "sqlite_errorcode", 0) & _PRIMARY
    if code in _REFUSED or isinstance(error, OSError):
        return InputError(f"{line}; COLDFORGE_HOME or --storage names another place")
    return ColdforgeError(line)


def _is_damage(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    # Text that is no UTF-8 is found by Python's module, which gives no code.
    return isinstance(error, sqlite3.OperationalError) if code is None else code & _PRIMARY in _DAMAGED


def _sqlite_error(error: BaseException) -> sqlite3.Error | None:
    """SQLite's own error, wherever in the chain it stands."""
    seen: BaseException | None = error
    while seen is not None:
        for one in (seen, getattr(seen, "orig", None)):  # SQLAlchemy's errors hold the driver's
            if isinstance(one, sqlite3.Error):
                return one
        seen = seen.__cause__
    return None


def _cause(error: BaseException) -> BaseException:
    """What Optuna's error stands for: it says no more than that there is one."""
    return error.__cause__ if isinstance(error, StorageInternalError) and error.__cause__ else error


def _first_line(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error)
    return (text.splitlines() or [type(error).__name__])[0]
