# SPDX-License-Identifier: Apache-2.0
"""What to do when the database server does not answer: say so once, try again for a while, then give up in
one line. A server that is restarted costs nothing but the time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

import sqlalchemy.exc
from optuna.exceptions import StorageInternalError
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    stop_after_delay,
    wait_exponential,
    wait_random,
)

from ...codegen.errors import ColdforgeError

PATIENCE_S = 300.0
"""Seconds for which a server that does not answer is waited for."""
# What passes with time: connections, a server that shuts down or starts, too many clients, a deadlock.
_PASSING = ("08", "57", "40")
_TOO_MANY = "53300"

T = TypeVar("T")


class Patience:
    """Of one storage.

    Args:
        where: what a message calls the server; holds no password.
        limit_s: seconds for which it is waited for.
        tell: takes the one line that says that it waits.

    Attributes:
        interrupted: whether somebody wants this process to end; then nothing is waited for any more.
    """

    def __init__(
        self,
        where: str,
        limit_s: float = PATIENCE_S,
        tell: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
    ) -> None:
        self._where, self._limit_s, self._tell = where, limit_s, tell
        self._told = self._gave_up = False
        self.interrupted: Callable[[], bool] = lambda: False

    def __call__(self, action: Callable[[], T]) -> T:
        """Does something with the storage, again and again while it does not answer. What is done may have
        been done although the answer got lost, so it must do no harm twice.

        Raises:
            ColdforgeError: the server did not answer in time. The next action fails at once if it still does
                not, so that a run that ends for want of it does not wait again.
        """
        trying = Retrying(
            retry=retry_if_exception(is_passing),
            stop=self._enough,
            wait=wait_exponential(multiplier=0.1, max=2.0) + wait_random(0.0, 0.2),
            before_sleep=self._say,
            reraise=True,
        )
        try:
            answer = trying(action)
        except (sqlalchemy.exc.SQLAlchemyError, StorageInternalError) as error:
            if not is_passing(error):
                raise
            self._gave_up = True
            line = (str(_cause(error)).splitlines() or [""])[0]
            raise ColdforgeError(f"the studies on {self._where} cannot be reached: {line}") from error
        if self._told:
            self._tell(f"{self._where} answers again")
        self._told = self._gave_up = False
        return answer

    def _enough(self, state: RetryCallState) -> bool:
        return self._gave_up or self.interrupted() or stop_after_delay(self._limit_s)(state)

    def _say(self, state: RetryCallState) -> None:
        if not self._told:
            self._told = True
            self._tell(f"{self._where} does not answer; waiting for it for up to {self._limit_s:g} s")


def is_passing(error: BaseException) -> bool:
    """Whether the database may do later what it failed to do now."""
    cause = _cause(error)
    # No connection became free; or what failed for want of the server was not undone before the next attempt.
    if isinstance(cause, sqlalchemy.exc.TimeoutError | sqlalchemy.exc.PendingRollbackError):
        return True
    if not isinstance(cause, sqlalchemy.exc.DBAPIError):
        return False
    if cause.connection_invalidated:
        return True
    state = getattr(cause.orig, "sqlstate", None)
    if state is not None:
        return state[:2] in _PASSING or state == _TOO_MANY
    return isinstance(cause, sqlalchemy.exc.OperationalError | sqlalchemy.exc.InterfaceError)


def _cause(error: BaseException) -> BaseException:
    wrapped = isinstance(error, StorageInternalError) and error.__cause__
    return wrapped or error
