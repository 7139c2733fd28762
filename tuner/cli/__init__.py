# SPDX-License-Identifier: Apache-2.0
"""The command line. One file a command; this one registers them and turns errors into one line and an exit
code."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

import click

from ...codegen.errors import ColdforgeError

COMMANDS = ("list", "render", "check", "tune", "freeze", "build", "bench", "show")


class _Lazy(click.Group):
    """Imports a command's module only when it is used, so that ``render`` does not pay for what ``tune``
    needs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        return importlib.import_module(f".{cmd_name}", __name__).command


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="coldforge")
def cli() -> None:
    """Tune, verify and freeze GPU and CPU kernels for PyTorch."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point. Exit codes: 0 success, 2 bad usage or input (one line on stderr), 1 anything else."""
    sys.exit(run(list(sys.argv[1:] if arguments is None else arguments)))


def run(arguments: list[str]) -> int:
    """Runs one command line and returns its exit code."""
    try:
        result = cli.main(arguments, prog_name="coldforge", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return 2
    except click.ClickException as error:
        return _complain(error.format_message(), 2)
    except ColdforgeError as error:
        return _complain(str(error), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return _complain("stopped", 1)
    except BrokenPipeError:
        # The reader went away (`| head`); closing stderr too keeps the interpreter from complaining at exit.
        sys.stderr.close()
        return 1


def _complain(message: str, code: int) -> int:
    click.echo("coldforge: " + " ".join(message.split()), err=True)
    return code
