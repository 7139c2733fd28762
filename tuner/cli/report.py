# SPDX-License-Identifier: Apache-2.0
"""``coldforge report``: a study as one HTML file."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...codegen.errors import InputError
from ...codegen.settings import load_settings
from . import options
from .output import place_of, print_json, write_whole

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

_NEEDS = {"altair": "altair", "vl_convert": "vl-convert-python"}


@click.command("report", short_help="Write a study's charts and reasons as one HTML file.")
@click.argument("study", metavar="STUDY")
@click.option("-o", "--output", metavar="FILE", required=True, help="The HTML file to write.")
@click.option("--from", "bundle", metavar="BUNDLE", help="Take the study from a bundle of freeze --bundle.")
@click.option("--storage", metavar="URL", help="Where the studies are [default: under COLDFORGE_HOME].")
@options.json_option
def command(study: str, output: str, bundle: str | None, storage: str | None, as_json: bool) -> None:
    """Write the report of STUDY (as `show` names one) into FILE: a page that opens offline and says why the
    winner won."""
    _require_library()
    path = place_of(output)

    from ..report.page import render_page
    from ..report.story import tell
    from ..storage import open_storage, storage_faults
    from ..study import find_study

    if bundle is not None and storage is not None:
        raise InputError("--from and --storage both name where the study is; give one of them")
    opened = _carried(bundle) if bundle else open_storage(storage, load_settings().home, create=False)
    with storage_faults(opened):
        story = tell(find_study(opened, study), shared=storage is not None)
    page = render_page(story)
    write_whole(path, page)
    if as_json:
        print_json({"file": str(path), "bytes": len(page.encode()), **story.to_dict()})
    else:
        click.echo(f"{path}: {len(page.encode()) / 1e6:.2f} MB, of {story.material.summary['study']}")


def _require_library() -> None:
    missing = [name for module, name in _NEEDS.items() if find_spec(module) is None]
    if missing:
        raise InputError(
            f"a report needs the extra `report`, and {' and '.join(missing)} is not installed: "
            f"pip install {' '.join(missing)}"
        )


def _carried(bundle: str) -> BaseStorage:
    """A bundle's studies, in memory.

    Raises:
        InputError: the file is no bundle, or damaged.
    """
    from optuna.storages import InMemoryStorage

    from ...codegen.freeze import read_bundle
    from ..transfer import import_studies

    storage = InMemoryStorage()
    import_studies(storage, read_bundle(Path(bundle)).studies)
    return storage
