# SPDX-License-Identifier: Apache-2.0
"""The command line. One file a command; this one registers them and turns errors into one line and an exit
code."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Sequence

import click

from ...codegen.errors import ColdforgeError
from ...codegen.places import located

MAX_MESSAGE = 1000
TRACEBACK = "--traceback"
COMMANDS = (
    "list",
    "render",
    "check",
    "tune",
    "worker",
    "freeze",
    "build",
    "bench",
    "show",
    "report",
    "export",
    "replay",
)


class _Lazy(click.Group):
    """Imports a command's module only when it is used, so that ``render`` does not pay for what ``tune``
    needs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS]  # the name `list` is that of the command's module once it was imported

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        return importlib.import_module(f".{cmd_name}", __name__).command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], COMMANDS, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(COMMANDS)}."
            ctx.fail(f"No such command {args[0]!r:.80}; {hint}")
        return super().resolve_command(ctx, args)


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="coldforge")
@click.option(TRACEBACK, is_flag=True, help="Show where an error that nothing foresaw comes from.")
def cli(traceback: bool) -> None:
    """Tune, verify and freeze GPU and CPU kernels for PyTorch."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point. Exit codes: 0 success, 2 bad usage or input (one line on stderr), 1 anything else."""
    given = [*(sys.argv[1:] if arguments is None else arguments)]
    try:
        code = run(given)
    except Exception as error:
        # A fault of coldforge's own. `run` lets it through, so that tests see it for what it is.
        if TRACEBACK in given[:1]:
            raise
        hint = f"this is a fault of coldforge; `coldforge {TRACEBACK} ...` shows where it comes from"
        code = _complain(f"unexpected {type(error).__name__}: {str(error)[:300]} ({hint})", 1)
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Runs one command line and returns its exit code."""
    try:
        result = cli.main(arguments, prog_name="coldforge", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return 2
    except click.UsageError as error:
        help_of = f" (see {error.ctx.command_path} --help)" if error.ctx else ""
        return _complain(error.format_message() + help_of, 2)
    except click.ClickException as error:
        return _complain(error.format_message(), 2)
    except ColdforgeError as error:
        return _complain(located(error), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return _complain("stopped", 1)
    except BrokenPipeError:
        # The reader went away (`| head`); closing stderr too keeps the interpreter from complaining at exit.
        sys.stderr.close()
        return 1


def _complain(message: str, code: int) -> int:
    line = " ".join(message.split())
    line = line if len(line) <= MAX_MESSAGE else line[: MAX_MESSAGE - 3] + "..."
    click.echo(f"coldforge: {line}", err=True)
    return code
