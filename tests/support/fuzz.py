# SPDX-License-Identifier: Apache-2.0
"""What the fuzz tests share: a command run in this process, what may come of it, and hostile values."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coldforge.tuner.cli import run
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st


def profile(examples: int) -> Any:
    """Settings of a test that runs the same examples everywhere and each time."""
    return settings(
        derandomize=True,
        database=None,
        deadline=None,
        max_examples=examples,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


@dataclass(frozen=True)
class Ended:
    """A command that ran to its end; one that raises something is not caught."""

    arguments: Sequence[str]
    code: int
    out: str
    err: str


def command(*arguments: str) -> Ended:
    """Runs a command line in this process. What `run` does not expect comes out of it as it is: the guard
    against that is in `main`."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(list(arguments))
    return Ended(arguments, code, out.getvalue(), err.getvalue())


def refused(*arguments: str, codes: Sequence[int] = (2,)) -> str:
    """Runs a command line that must be refused; the one line that says why."""
    ended = command(*arguments)
    assert ended.code in codes, ended
    return one_line(ended)


def accepted_or_refused(*arguments: str, codes: Sequence[int] = (0, 2)) -> Ended:
    """Runs a command line of which either may come, as one should."""
    ended = command(*arguments)
    assert ended.code in codes, ended
    if ended.code:
        one_line(ended)
    else:
        assert "Traceback" not in ended.err, ended
    return ended


def one_line(ended: Ended) -> str:
    """The one line on stderr of a command that failed."""
    lines = ended.err.splitlines()
    assert len(lines) == 1, ended
    assert lines[0].startswith("coldforge: "), ended
    assert len(lines[0]) < 1100, ended
    assert ended.out == "", ended
    return lines[0]


HOSTILE_TEXTS = (
    "",
    " ",
    "\n",
    "\0",
    "..",
    "../../x",
    "/etc/passwd",
    "a" * 300,
    "a" * 90_000,
    "é",
    "\uff45xec",
    "\u202e\u2066",
    "\x1b[31m",
    "[/bold]",
    "[bold red]x[/]",
    "{0.__class__}",
    "{{ ''.__class__.__mro__ }}",
    "%s%n",
    '"""); import os; os.abort(); """',
    "__import__('os').abort()",
    "().__class__.__base__.__subclasses__()",
    "(lambda: x)()",
    "[x for x in (1,)]",
    "x := 1",
    "f'{x}'",
    "2 ** (2 ** 40)",
    "10 ** 10 ** 10",
    "1 << 1000000000",
    "9" * 400,
    "9223372036854775807 + 1",
    "1 // 0",
    "1 % 0",
    "1e308 * 10",
    "nan",
    "(" * 200 + "1" + ")" * 200,
    "not " * 400 + "1",
    "1" + " + 1" * 400,
    "1if 1else 0",
    "0x",
    "true",
    "null",
    "N",
    "rows",
    "class",
    "self",
    "has_bias",
    "default: [}",
)
"""Texts that no place of a declaration wants."""

hostile_values = st.one_of(
    st.sampled_from(HOSTILE_TEXTS),
    st.sampled_from([0, -1, 1, 2, 10**9, 2**31, 2**63, 10**400, -(10**30)]),
    st.sampled_from([0.0, -0.5, 1e300, float("inf"), float("nan")]),
    st.sampled_from([None, True, False, [], {}, [[]], [{}], {"a": {}}, [1, "a", None]]),
    st.just(list(range(1001))),
    st.text(max_size=8),
    st.lists(st.integers(-5, 5), max_size=4),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=3),
)
"""A value of any kind in the place of another."""


def paths_of(document: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document of mappings and lists."""
    found = [here] if here else []
    if isinstance(document, dict):
        for key, value in document.items():
            found += paths_of(value, (*here, key))
    elif isinstance(document, list):
        for index, value in enumerate(document):
            found += paths_of(value, (*here, index))
    return found


def changed(document: Any, path: tuple[Any, ...], how: str, value: Any) -> Any:
    """A copy of a document with one place changed.

    Args:
        how: ``replace`` it by ``value``, ``drop`` it, or ``rename`` its key to ``value``.
    """
    head, *rest = path
    if isinstance(document, dict):
        if rest:
            return {**document, head: changed(document[head], tuple(rest), how, value)}
        if how == "drop":
            return {key: item for key, item in document.items() if key != head}
        if how == "rename":
            return {(str(value) if key == head else key): item for key, item in document.items()}
        return {**document, head: value}
    copy = list(document)
    if rest:
        copy[head] = changed(copy[head], tuple(rest), how, value)
    elif how == "drop":
        del copy[head]
    else:
        copy[head] = value
    return copy
