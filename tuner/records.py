# SPDX-License-Identifier: Apache-2.0
"""Where a run notes what it is at: in files beside an embedded study, in the database of a shared one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from optuna.storages import BaseStorage

from .attempts import Attempts
from .interrupts import Interrupts
from .search import FeasibleSet
from .storage import is_embedded
from .study import Study
from .tools import Record


@contextlib.contextmanager
def sharing(
    storage: BaseStorage, home: Path, study: Study, feasible: FeasibleSet, guard: Interrupts
) -> Iterator[tuple[Study, Record]]:
    """The study as a run is to use it, and the run's record, which ends with the block: in good order, or as
    after a death.

    Args:
        home: coldforge's folder.
        guard: whose held-back interrupt ends the patience with a server that does not answer.
    """
    if is_embedded(storage):
        with Attempts(home, study.name) as attempts:
            yield study, attempts
        return
    from .shared.record import SharedRecord
    from .shared.storage import SharedStorage

    assert isinstance(storage, SharedStorage)
    storage.patience.interrupted = lambda: guard.pending
    with SharedRecord(storage, study.of_optuna, feasible) as record:
        yield study.storing(record.store), record


def watching(storage: BaseStorage | None, home: Path, study: Study) -> Callable[[], bool | None]:
    """What tells at any time whether a run that may live works on a study: on this machine where the storage
    is a file, else on any.
    """
    if storage is None or is_embedded(storage):
        record = Attempts(home, study.name)
        return lambda: record.at_work
    from .shared.ledger import Ledger
    from .shared.storage import SharedStorage

    assert isinstance(storage, SharedStorage)
    ledger = Ledger(storage, study.of_optuna._study_id, "")
    return lambda: ledger.in_progress
