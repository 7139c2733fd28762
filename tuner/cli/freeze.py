# SPDX-License-Identifier: Apache-2.0
"""``coldforge freeze``: winners into ``generated/``, into a package of their own, or into one file to
carry.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...codegen.catalogue import Catalogue
from ...codegen.errors import ColdforgeError, InputError
from ...codegen.settings import load_settings
from . import options
from .build import run_build
from .output import print_json

if TYPE_CHECKING:
    from ...codegen.freeze import Bundle, Change, Winner


@click.command("freeze")
@click.argument("operators", metavar="[OP]...", nargs=-1)
@click.option("--package", metavar="NAME", help="Write the importable package NAME instead; needs --out.")
@click.option("--out", metavar="DIR", help="Where NAME is written.")
@click.option("--bundle", metavar="FILE", help="Write one file that carries the winners and their studies.")
@click.option("--from", "sources", metavar="FILE", multiple=True, help="Take the winners of a bundle.")
@click.option("--no-build", is_flag=True, help="Write the files only.")
@click.option("--storage", metavar="URL", help="Where the studies are [default: under COLDFORGE_HOME].")
@options.templates_option
@options.json_option
def command(
    operators: tuple[str, ...],
    package: str | None,
    out: str | None,
    bundle: str | None,
    sources: tuple[str, ...],
    no_build: bool,
    storage: str | None,
    templates: str | None,
    as_json: bool,
) -> int:
    """Freeze the winners of the newest studies (of OP, or of every operator) and build them.

    Without --package and --bundle they go to generated/, where an entry of the same operator, shape and
    device is replaced. With --from, studies are read only for the OPs named. A package or bundle with no
    study to take holds what generated/ holds.
    """
    _check_options(package, out, bundle, no_build)
    catalogue = options.catalogue_from_option(templates)
    for name in operators:
        catalogue.operator(name)
    found = _Found(operators, sources, storage)
    if bundle is not None:
        report = _write_bundle(found, Path(bundle))
    else:
        report = _write_package(found, catalogue, package, out, build=not no_build)
    if as_json:
        print_json(report)
    else:
        _show(report)
    return 0 if report["status"] == "ok" else 1


def _check_options(package: str | None, out: str | None, bundle: str | None, no_build: bool) -> None:
    if (package is None) != (out is None):
        raise InputError("--package NAME and --out DIR go together")
    if bundle is not None and (package is not None or no_build):
        raise InputError("--bundle writes one file; it does not go with --package, --out or --no-build")
    if package is not None and (package in sys.stdlib_module_names or package == "coldforge"):
        raise InputError(f"package name {package!r} is taken")


class _Found:
    """The winners that a command line names: of studies, of bundles, and those frozen already.

    Args:
        operators: only these; all when empty.
        sources: bundle files.
        storage: URL of the studies.
    """

    def __init__(self, operators: tuple[str, ...], sources: tuple[str, ...], storage: str | None) -> None:
        from ...codegen.freeze import GENERATED, load_winners, read_bundle
        from ..storage import open_storage, storage_faults
        from ..winners import collect_winners

        self.operators = operators
        self.frozen = load_winners(GENERATED)
        self.bundles: list[Bundle] = [read_bundle(Path(source)) for source in sources]
        self.storage = open_storage(storage, load_settings().home, create=bool(sources))
        from_studies = not sources or bool(operators)
        with storage_faults():
            self.tuned = self._wanted(collect_winners(self.storage)) if from_studies else []
        self.carried = self._wanted([w for bundle in self.bundles for w in bundle.winners])

    def _wanted(self, winners: list[Winner]) -> list[Winner]:
        return [w for w in winners if not self.operators or w.operator in self.operators]

    @property
    def new(self) -> list[Winner]:
        """What the command adds: first of bundles, then of this machine's studies."""
        return [*self.carried, *self.tuned]

    def require_some(self, winners: list[Winner]) -> None:
        """Raises InputError when there is nothing to freeze."""
        if not winners:
            named = " ".join(self.operators)
            raise InputError(
                f"nothing to freeze: no study has a winner; run coldforge tune {named or 'OP'} first"
            )


def _write_bundle(found: _Found, path: Path) -> dict[str, Any]:
    from ...codegen.freeze import merge, write_bundle
    from ..transfer import study_records

    winners, changes = merge([], found.new or found._wanted(found.frozen))
    found.require_some(winners)
    records = study_records(found.storage, [w.study for w in winners])
    for carried in found.bundles:
        records = {**carried.studies, **records}
    digest = write_bundle(path, winners, records)
    return {
        "status": "ok",
        "bundle": str(path),
        "sha256": digest,
        "entries": [_change(change) for change in changes],
        "studies": sorted(records),
    }


def _write_package(
    found: _Found, catalogue: Catalogue, package: str | None, out: str | None, *, build: bool
) -> dict[str, Any]:
    from ...codegen.freeze import GENERATED, freeze, merge, split_stale
    from ...codegen.freeze.package import REPOSITORY_NAMESPACE
    from ..transfer import import_studies

    kept, stale = split_stale(found.frozen, catalogue)
    if package is None:
        folder, namespace = GENERATED, REPOSITORY_NAMESPACE
        if "site-packages" in folder.parts:
            raise InputError(
                "generated/ of an installed coldforge is not written; use --package NAME --out DIR"
            )
    else:
        folder, namespace = Path(out or ".").absolute() / package, package
        kept = found._wanted(kept)
    winners, changes = merge(kept, found.new)
    found.require_some(winners)
    report = freeze(winners, folder, namespace, declared=catalogue)
    imported = [name for bundle in found.bundles for name in import_studies(found.storage, bundle.studies)]
    result = {
        "status": "ok",
        "folder": str(report.folder),
        "package": package or "coldforge.generated",
        "namespace": namespace,
        "operators": list(report.operators),
        "entries": [_change(change) for change in changes],
        "dropped": [winner.name for winner in stale],
        "total_entries": len(report.entries),
        "manifest": report.manifest_digest,
        "changed": report.changed,
        "imported_studies": imported,
        "build": None,
    }
    if build:
        try:
            result["build"] = run_build(
                package or "coldforge.generated", None if package is None else folder.parent
            )
            result["status"] = result["build"]["status"]
        except ColdforgeError as error:
            result |= {"status": "failed", "build": {"status": "failed", "reason": str(error)}}
    return result


def _change(change: Change) -> dict[str, Any]:
    return {"name": change.name, "what": change.what, "old_ms": change.old_ms, "new_ms": change.new_ms}


def _show(report: dict[str, Any]) -> None:
    for entry in report["entries"]:
        times = f"{entry['new_ms']:.4g} ms"
        if entry["what"] == "replaced":
            slower = entry["new_ms"] > entry["old_ms"]
            note = "  (slower; times of different runs compare roughly)" if slower else ""
            times = f"{entry['old_ms']:.4g} ms -> {times}{note}"
        click.echo(f"{entry['what']:>8}  {entry['name']}  {times}")
    for name in report.get("dropped", []):
        click.echo(f" dropped  {name}  (its operator's declaration has changed)")
    if "bundle" in report:
        click.echo(
            f"{report['bundle']}: winners: {len(report['entries'])}, studies: {len(report['studies'])}"
        )
        return
    built = report["build"]
    click.echo(f"{report['folder']}: {report['total_entries']} frozen, of {', '.join(report['operators'])}")
    if built is None:
        return
    if "reason" in built:
        click.echo(f"not built: {built['reason']}", err=True)
        return
    click.echo(f"{built['extension']}: {len(built['enabled'])} variants enabled")
    for name, result in built["variants"].items():
        if not result["ok"]:
            click.echo(f"off: {name}: {result['why']}", err=True)
