# SPDX-License-Identifier: Apache-2.0
"""What the scripts beside it share: commands of coldforge in processes of their own, and where results go."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from coldforge.codegen.atomic import write_text
from coldforge.codegen.errors import ColdforgeError, InputError

_MAIN = "from coldforge.tuner.cli import main; main()"


class StepFailed(Exception):
    """A command that did not succeed; the message is its last line."""


def coldforge(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Runs a command and returns its JSON document; its progress goes to stderr.

    Args:
        arguments: Of the command line.
        environment: Variables beside those of this process.

    Raises:
        StepFailed: It did not exit with 0, or printed no document.
    """
    print(f"$ coldforge {shlex.join(arguments)}", file=sys.stderr, flush=True)
    command = [sys.executable, "-c", _MAIN, *arguments, "--json"]
    variables = {**os.environ, **(environment or {})}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=variables)
    try:
        document = json.loads(done.stdout)
    except ValueError:
        document = {}
    if done.returncode != 0 or not document:
        raise StepFailed(f"coldforge {shlex.join(arguments)}: exit {done.returncode}")
    return document


def one_line(main: Callable[[], int]) -> int:
    """The exit code of a script; what is wrong with its input is one line and 2, as of the commands."""
    try:
        return main()
    except ColdforgeError as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        return 2


def at_least_one(name: str, value: int) -> int:
    """An option's count.

    Raises:
        InputError: It is less: there would be nothing to tell of.
    """
    if value < 1:
        raise InputError(f"{name} {value} is too few; at least 1")
    return value


def out_folder(given: Path | None, name: str) -> Path:
    """Where results go: what was given, else ``$OUT``, else ``build/<name>``."""
    folder = given or Path(os.environ.get("OUT", f"build/{name}"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder.absolute()


def this_command() -> str:
    """The command line that runs, as a user types it."""
    return f"python benchmarks/{Path(sys.argv[0]).name} {shlex.join(sys.argv[1:])}".rstrip()


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Writes a result, whole or not at all."""
    write_text(path, json.dumps(document, indent=1) + "\n")
