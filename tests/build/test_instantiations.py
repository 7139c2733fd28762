# SPDX-License-Identifier: Apache-2.0
"""What the ledgers lack, executed in the emulator: for half a minute, or all of it and that which passed
elsewhere too (`--instantiations=all`). Each pass is recorded at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from instantiations import NAMES, Budget, execute, subject_named

pytestmark = [pytest.mark.build, pytest.mark.timeout(0)]

USUAL_SECONDS = 30.0


@pytest.fixture(scope="module")
def budget(pytestconfig: pytest.Config) -> Budget:
    given = pytestconfig.getoption("--instantiations-seconds")
    if given is None and pytestconfig.getoption("--instantiations") == "missing":
        given = USUAL_SECONDS
    return Budget(given)


@pytest.mark.parametrize("name", NAMES)
def test_instantiations(
    name: str, budget: Budget, pytestconfig: pytest.Config, record_property: Callable[[str, object], None]
) -> None:
    everywhere = pytestconfig.getoption("--instantiations") == "all"
    subject = subject_named(name, pytestconfig)
    tally = execute(subject, budget.share(), record_property, everywhere=everywhere)
    assert len(subject.lacking("emulator" if everywhere else None)) == tally.remaining
