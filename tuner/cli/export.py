# SPDX-License-Identifier: Apache-2.0
"""``coldforge export``: a study's trials in a file for other programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ...codegen.errors import InputError
from ...codegen.settings import load_settings
from . import options
from .output import json_text, place_of, print_json, write_whole

if TYPE_CHECKING:
    from ..export.rows import Export

FORMATS = ("csv", "json", "t4")


@click.command("export", short_help="Write a study's trials as CSV, JSON or T4.")
@click.argument("study", metavar="STUDY")
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    required=True,
    help="csv: a line a trial; json: all that the study holds; t4: the format that tuners share.",
)
@click.option("-o", "--output", metavar="FILE", help="The file to write [default: standard output].")
@click.option("--storage", metavar="URL", help="Where the studies are [default: under COLDFORGE_HOME].")
@options.json_option
def command(study: str, form: str, output: str | None, storage: str | None, as_json: bool) -> None:
    """Write every trial of STUDY (as `show` names one): parameters, outcome, times, resources, error."""
    from ..export.rows import export_of
    from ..storage import open_storage, storage_faults
    from ..study import find_study

    if as_json and output is None and form == "csv":
        raise InputError("--json says what was written; with --format csv it needs -o FILE")
    path = None if output is None else place_of(output, ", or leave -o out for standard output")
    opened = open_storage(storage, load_settings().home, create=False)
    with storage_faults(opened):
        found = export_of(find_study(opened, study))
    text = _text(found, form)
    if path is None:
        click.echo(text, nl=False)
        return
    write_whole(path, text)
    told = {"file": str(path), "format": form, "bytes": len(text.encode()), "trials": len(found.rows)}
    if as_json:
        print_json({**told, "study": found.summary["study"]})
    else:
        click.echo(f"{path}: {len(found.rows)} trials of {found.summary['study']}")


def _text(found: Export, form: str) -> str:
    if form == "csv":
        from ..export.table import to_csv

        return to_csv(found)
    if form == "t4":
        from ..export.t4 import to_t4

        return json_text(to_t4(found)) + "\n"
    from ..export.document import to_document

    return json_text(to_document(found)) + "\n"
