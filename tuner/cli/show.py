# SPDX-License-Identifier: Apache-2.0
"""``coldforge show``: one study, or the list of studies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...codegen.errors import InputError
from ...codegen.settings import load_settings
from . import options
from .output import print_json

if TYPE_CHECKING:
    from optuna.storages import BaseStorage


@click.command("show", short_help="Show a study on the terminal, or the list of them.")
@click.argument("study", metavar="[STUDY]", required=False)
@click.option("--follow", is_flag=True, help="Keep showing it until the run at work on it ends, or Ctrl-C.")
@click.option("--storage", metavar="URL", help="Where the studies are [default: under COLDFORGE_HOME].")
@options.json_option
def command(study: str | None, follow: bool, storage: str | None, as_json: bool) -> None:
    """Show STUDY: an operator (its newest study that has trials), a study's name, or a unique prefix of it.
    Without STUDY, list all studies."""
    from rich.console import Console

    from ..show import studies_document, studies_list, study_document, study_tables
    from ..storage import open_storage, storage_faults
    from ..study import find_study, list_studies

    if follow and (as_json or study is None):
        raise InputError("--follow shows one study on the terminal; give STUDY, and leave out --json")
    opened = open_storage(storage, load_settings().home, create=False)
    with storage_faults(opened):
        if study is None:
            document = studies_document(list_studies(opened))
            shown = studies_list(document)
        elif follow:
            _follow(opened, study, load_settings().home)
            return
        else:
            document = study_document(find_study(opened, study))
            of_it = [one for one in list_studies(opened) if one.about["operator"] == study]
            shown = study_tables(document, max(0, len(of_it) - 1))
    if as_json:
        print_json(document)
    else:
        Console().print(shown)


def _follow(storage: BaseStorage | None, text: str, home: Path) -> None:
    """Redraws the study in place on a terminal, prints a line at each change elsewhere."""
    from rich.console import Console
    from rich.live import Live

    from ..follow import moments
    from ..records import watching
    from ..show import follow_line, study_tables
    from ..study import find_study

    study = find_study(storage, text, empty=True)  # perhaps it has just begun
    seen = moments(study, watching(storage, home, study))
    console = Console()
    held, line = False, ""
    if console.is_terminal:
        with Live(console=console, refresh_per_second=2) as live:
            for document in seen:
                held = document["finals_held"]
                live.update(study_tables(document))
    else:
        for document in seen:
            held = document["finals_held"]
            if (new := follow_line(document)) != line:
                line = new
                click.echo(line)
    if not held:
        click.echo("no run works on it any more, and its finals are not held", err=True)
