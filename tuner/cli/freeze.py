# SPDX-License-Identifier: Apache-2.0
"""``coldforge freeze``: winners into ``generated/``, into a package of their own, or into one file to
carry.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...codegen.errors import ColdforgeError, InputError
from . import options
from .build import run_build
from .found import Found
from .output import print_json

if TYPE_CHECKING:
    from ...codegen.freeze import Change, Winner


@click.command("freeze", short_help="Keep the kernels that won, in generated/ or a package.")
@click.argument("operators", metavar="[OP]...", nargs=-1)
@click.option(
    "--package", metavar="NAME", help="Write the importable package NAME and its wheel instead; needs --out."
)
@click.option("--out", metavar="DIR", help="Where NAME is written.")
@click.option("--bundle", metavar="FILE", help="Write one file that carries the winners and their studies.")
@click.option("--from", "sources", metavar="FILE", multiple=True, help="Take the winners of a bundle.")
@click.option("--replace", is_flag=True, help="Replace entries that were measured faster, too.")
@click.option("--no-build", is_flag=True, help="Write the files only.")
@click.option(
    "--survey",
    is_flag=True,
    help="Time each kernel of this machine's device at the sizes of the others, too. A size that nobody "
    "tuned then takes what was fastest at those nearest to it.",
)
@click.option("--storage", metavar="URL", help="Where the studies are [default: under COLDFORGE_HOME].")
@options.templates_option
@options.json_option
def command(
    operators: tuple[str, ...],
    package: str | None,
    out: str | None,
    bundle: str | None,
    sources: tuple[str, ...],
    replace: bool,
    no_build: bool,
    survey: bool,
    storage: str | None,
    templates: tuple[str, ...],
    as_json: bool,
) -> int:
    """Freeze the winners of the newest studies (of OP, or of every operator) and build them. Of an operator
    of --templates, studies count that were tuned from the text that is there now.

    Without --package and --bundle they go to generated/; operators of --templates have no place there. An
    entry of the same operator, shape and device is replaced, all others stay, in generated/ and in a package
    that is there already. An entry stays, too, that was clearly faster on the same device, driver and
    compiler, unless the new winner's study tried it: --replace replaces that as well. With --from, studies
    are read only for the OPs named. A new package, or a bundle, takes what generated/ holds (of the OPs) too.
    """
    _check_options(package, out, bundle, no_build or replace or survey)
    if survey and no_build:
        raise InputError("--survey times what was built; it does not go with --no-build")
    folder = None if package is None else Path(out or ".").absolute() / package
    declared = options.catalogue_from_option(templates)
    with contextlib.ExitStack() as stack:
        if bundle is None:  # from reading what is frozen to writing it
            stack.enter_context(alone(folder))
        found = Found(operators, sources, storage, declared, folder)
        if package is None and bundle is None:
            found.keep_to_builtin()
        if bundle is not None:
            report = _write_bundle(found, Path(bundle))
        else:
            how = {"replace": replace, "build": not no_build, "survey": survey}
            report = _write_package(found, package, folder, **how)
    if as_json:
        print_json(report)
    else:
        _show(report)
    return 0 if report["status"] == "ok" else 1


@contextlib.contextmanager
def alone(folder: Path | None) -> Iterator[None]:
    """Keeps other `freeze` commands off the package that is written: of two at once the later one would not
    have what the earlier one adds. What is locked is the folder that the package is in (where a link leads),
    since the package's own is replaced as a whole; no file is made. Where a file system knows no locks,
    nobody is kept off.

    Args:
        folder: the package's; generated/ when None.
    """
    from ...codegen.freeze import GENERATED

    parents = Path(os.path.realpath(folder or GENERATED)).parents
    try:
        parent = next(place for place in parents if place.is_dir())  # where nothing is there yet: further up
        handle = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ColdforgeError(f"cannot open {parents[0]}: {error.strerror or error}") from error
    try:
        _lock(handle, parent)
        yield
    finally:
        os.close(handle)


def _lock(handle: int, folder: Path) -> None:
    """Waits for the lock of an open folder, which ends with the process or when it is closed."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        click.echo(f"coldforge: another freeze writes in {folder}; waiting for it ...", err=True)
        fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError:  # ENOLCK, ENOTSUP: as it was without a lock
        return


def _check_options(package: str | None, out: str | None, bundle: str | None, of_packages: bool) -> None:
    if (package is None) != (out is None):
        raise InputError("--package NAME and --out DIR go together")
    if bundle is not None and (package is not None or of_packages):
        raise InputError(
            "--bundle writes one file; it does not go with --package, --out, --replace, --no-build or "
            "--survey"
        )
    if bundle is not None:
        _check_place(Path(bundle).absolute().parent, f"--bundle {bundle}")
        if Path(bundle).is_dir():
            raise InputError(f"--bundle {bundle} is a folder; name a file")
    if package is not None and out is not None:
        from ...codegen.freeze.namespace import check_namespace

        check_namespace(package)
        _check_place(Path(out).absolute(), f"--out {out}")
        _check_free(package, Path(out).absolute())


def _check_place(folder: Path, option: str) -> None:
    """Refuses a folder that is not there and cannot be made."""
    try:
        there = next(place for place in (folder, *folder.parents) if place.exists())
    except OSError as error:
        raise InputError(f"{option}: {error.strerror or error}") from None
    if not there.is_dir():
        raise InputError(f"{option}: {there} is a file, not a folder")


def _check_free(package: str, out: Path) -> None:
    """Refuses the name of a module that it would hide, or that would hide it. Another package of frozen
    kernels may have it: the same one, copied or moved."""
    if package in sys.stdlib_module_names or package == "coldforge":
        raise InputError(f"package name {package!r} is taken")
    spec = importlib.util.find_spec(package)  # looks for a file; runs nothing
    if spec is None:
        return
    places = [Path(place) for place in spec.submodule_search_locations or ()]
    if spec.origin is None:  # parts of a package in several folders; any folder looks like one
        places = [place for place in places if {"site-packages", "dist-packages"} & set(place.parts)]
    elif not places:
        places = [Path(spec.origin)]
    for place in places:
        if place != out / package and not (place / "manifest.json").is_file():
            raise InputError(f"package name {package!r} is taken by a module of this Python ({place})")


def _write_bundle(found: Found, path: Path) -> dict[str, Any]:
    from ...codegen.freeze import merge, write_bundle
    from ..transfer import study_records

    winners, changes = merge([], found.new or found.wanted(found.frozen))
    found.require_some(winners)
    records = study_records(found.storage, [w.study for w in winners])
    for carried in found.bundles:
        records = {**carried.studies, **records}
    digest = write_bundle(path, winners, records)
    return {
        "status": "ok",
        "bundle": str(path),
        "sha256": digest,
        "entries": [_change(change, found) for change in changes],
        "studies": sorted(records),
        "passed_over": found.passed_over,
    }


def _write_package(
    found: Found, package: str | None, folder: Path | None, *, replace: bool, build: bool, survey: bool
) -> dict[str, Any]:
    from ...codegen.freeze import GENERATED, Change, freeze, merge, split_stale, with_ptx
    from ...codegen.freeze.namespace import REPOSITORY_NAMESPACE
    from ..storage import storage_faults
    from ..transfer import import_studies

    if folder is None or package is None:
        folder, namespace = GENERATED, REPOSITORY_NAMESPACE
        kept, stale = split_stale(found.frozen, found.catalogue)
        here = kept
        if "site-packages" in folder.parts:
            raise InputError(
                "generated/ of an installed coldforge is not written; use --package NAME --out DIR"
            )
    else:
        namespace = package
        here, stale = split_stale(found.held, found.catalogue)
        kept, _ = merge(split_stale(found.wanted(found.frozen), found.catalogue)[0], here)
    new, outdated = found.current()
    with storage_faults():
        merged, changes = merge(kept, new, (lambda old, new: False) if replace else found.stays)
    winners, without_ptx = with_ptx(merged, found.catalogue, [*found.frozen, *found.held])
    there = {winner.name for winner in here}  # a package may have been given what generated/ holds
    changes = [
        c if c.name in there or c.what == "slower" else Change(c.name, "added", None, c.new_ms)
        for c in changes
    ]
    found.require_some(winners)
    report = freeze(winners, folder, namespace, declared=found.catalogue)
    imported = [name for bundle in found.bundles for name in import_studies(found.storage, bundle.studies)]
    result = {
        "status": "ok",
        "folder": str(report.folder),
        "package": package or "coldforge.generated",
        "namespace": namespace,
        "operators": list(report.operators),
        "entries": [_change(change, found) for change in changes],
        "dropped": [winner.name for winner in (*stale, *outdated)],
        "left_out": found.left_out,
        "passed_over": found.passed_over,
        "total_entries": len(report.entries),
        "without_ptx": without_ptx,
        "manifest": report.manifest_digest,
        "changed": report.changed,
        "imported_studies": imported,
        "build": None,
        "wheel": None,
    }
    if not build:
        return result
    result |= _built(package, folder)
    if not survey or result["status"] != "ok":
        return result
    surveyed = _surveyed(found, winners, package, folder)
    report = freeze(surveyed, folder, namespace, declared=found.catalogue)
    result |= {"manifest": report.manifest_digest, "changed": result["changed"] or report.changed}
    return result | _built(package, folder)


def _surveyed(found: Found, winners: list[Winner], package: str | None, folder: Path) -> list[Winner]:
    from ...codegen.settings import load_settings
    from ...codegen.target import detect
    from ..survey import survey

    if package is not None:
        sys.path.insert(0, str(folder.parent))  # the worker inherits it
    target = detect("auto")
    click.echo(f"coldforge: timing the kernels of {target.device} at each other's sizes ...", err=True)
    return survey(winners, target, load_settings(), package or "coldforge.generated", found.catalogue)


def _built(package: str | None, folder: Path) -> dict[str, Any]:
    """The results of building, and of packing what is not the repository's own."""
    from ...codegen.freeze import write_wheel

    try:
        built = run_build(package or "coldforge.generated", None if package is None else folder.parent)
        wheel = None
        if package is not None and built["status"] == "ok":
            wheel = str(write_wheel(folder, Path(built["extension"]), folder.parent))
    except ColdforgeError as error:
        return {"status": "failed", "build": {"status": "failed", "reason": str(error)}}
    return {"status": built["status"], "build": built, "wheel": wheel}


def _change(change: Change, found: Found) -> dict[str, Any]:
    times = {"old_ms": change.old_ms, "new_ms": change.new_ms}
    return {"name": change.name, "what": change.what, "shape": found.shape_of(change.name), **times}


def _show(report: dict[str, Any]) -> None:
    for entry in report["entries"]:
        times = f"{entry['new_ms']:.4g} ms"
        if entry["what"] == "replaced":
            slower = entry["new_ms"] > entry["old_ms"]
            note = "  (slower; times of different runs compare roughly)" if slower else ""
            times = f"{entry['old_ms']:.4g} ms -> {times}{note}"
        if entry["what"] == "slower":
            times = f"{entry['old_ms']:.4g} ms stays: the new winner takes {times} (--replace takes it)"
        what = "kept" if entry["what"] == "slower" else entry["what"]
        click.echo(f"{what:>8}  {entry['name']}  ({entry['shape']})  {times}")
    for study, why in report["passed_over"].items():
        click.echo(f"passed over  {study}: {why}", err=True)
    for reason in report.get("left_out", {}).values():
        click.echo(f"left out  {reason}", err=True)
    for name in report.get("dropped", []):
        click.echo(f" dropped  {name}  (its operator's declaration has changed)")
    new = {entry["name"] for entry in report["entries"]}
    for name, why in report.get("without_ptx", {}).items():
        if name in new:
            click.echo(f"{name} runs on GPUs of its architecture alone: {why}", err=True)
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
    if report["wheel"]:
        click.echo(f"{report['wheel']}: installs with pip, and runs with PyTorch alone")
    for name, result in built["variants"].items():
        if not result["ok"]:
            click.echo(f"off: {name}: {result['why']}", err=True)
