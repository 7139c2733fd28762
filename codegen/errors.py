# SPDX-License-Identifier: Apache-2.0
"""The one exception tree. ``str(error)`` is one line for a person; ``exit_code`` is what the command line
returns."""

from __future__ import annotations

from pathlib import Path


class ColdforgeError(Exception):
    """Anything coldforge reports on purpose. Exit code 1.

    Attributes:
        folder: where the file is that the text names by its folder's last name; see `places`.
    """

    exit_code = 1
    folder: Path | None = None


class InputError(ColdforgeError):
    """The user's input is at fault: the message says what, the value, and what would be right. Exit code
    2."""

    exit_code = 2


class UnknownName(InputError):
    """A name (operator, workload, template, parameter, ...) that does not exist."""

    def __init__(self, kind: str, name: str, known: list[str] | tuple[str, ...]) -> None:
        listed = ", ".join(sorted(known)) or "none"
        super().__init__(f"unknown {kind} {name!r}; known: {listed}")


class DeclarationError(InputError):
    """A YAML declaration or an expression in it that cannot be used."""


class ReferenceFailed(InputError):
    """A family's PyTorch reference that raised, or gave something else than the declared output."""


class InfeasibleConfig(InputError):
    """A config that the space excludes; the message carries the numbers."""


class TargetUnavailable(InputError):
    """A target that this machine does not have."""


class ToolMissing(ColdforgeError):
    """A compiler or library that a step needs is not installed; the message names how to get it."""


class CompileError(ColdforgeError):
    """A compiler refused a source.

    Attributes:
        log: what the compiler printed.
    """

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log

    def __reduce__(self) -> tuple[type[CompileError], tuple[str, str]]:
        # Exceptions with two arguments do not survive pickling between processes without this.
        return (type(self), (str(self), self.log))
