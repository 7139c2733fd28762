# SPDX-License-Identifier: Apache-2.0
"""``coldforge show``: one study, or the list of studies."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import click

from ...codegen.errors import InputError
from ...codegen.settings import load_settings
from . import options
from .output import print_json

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

_FOLLOW_EVERY_S = 2.0


@click.command("show")
@click.argument("study", metavar="[STUDY]", required=False)
@click.option("--follow", is_flag=True, help="Keep showing it until its finals are held, or Ctrl-C.")
@click.option("--storage", metavar="URL", help="Where the studies are [default: under COLDFORGE_HOME].")
@options.json_option
def command(study: str | None, follow: bool, storage: str | None, as_json: bool) -> None:
    """Show STUDY: an operator (its newest study), a study's name, or a unique prefix of it. Without STUDY,
    list all studies."""
    from rich.console import Console

    from ..show import studies_document, studies_list, study_document, study_tables
    from ..storage import open_storage, storage_faults
    from ..study import find_study, list_studies

    if follow and (as_json or study is None):
        raise InputError("--follow shows one study on the terminal; give STUDY, and leave out --json")
    opened = open_storage(storage, load_settings().home, create=False)
    with storage_faults():
        if study is None:
            document = studies_document(list_studies(opened))
            shown = studies_list(document)
        elif follow:
            with contextlib.suppress(KeyboardInterrupt):  # the usual way to end looking
                _follow(opened, study)
            return
        else:
            document = study_document(find_study(opened, study))
            shown = study_tables(document)
    if as_json:
        print_json(document)
    else:
        Console().print(shown)


def _follow(storage: BaseStorage | None, text: str) -> None:
    """Redraws the study in place on a terminal, prints a line at each change elsewhere."""
    from rich.console import Console
    from rich.live import Live

    from ..show import follow_line, study_document, study_tables
    from ..study import find_study

    study = find_study(storage, text)
    console = Console()
    document = study_document(study)
    if console.is_terminal:
        with Live(study_tables(document), console=console, refresh_per_second=2) as live:
            while not document["finals_held"]:
                time.sleep(_FOLLOW_EVERY_S)
                document = study_document(study)
                live.update(study_tables(document))
        return
    line = follow_line(document)
    console.print(line, soft_wrap=True)
    while not document["finals_held"]:
        time.sleep(_FOLLOW_EVERY_S)
        document = study_document(study)
        if follow_line(document) != line:
            line = follow_line(document)
            console.print(line, soft_wrap=True)
