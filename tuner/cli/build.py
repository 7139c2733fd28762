# SPDX-License-Identifier: Apache-2.0
"""``coldforge build``: the extension of ``generated/``."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...codegen.errors import ColdforgeError
from . import options
from .output import print_json

if TYPE_CHECKING:
    from ...codegen.freeze import Winner

_OWN = "coldforge.generated"
# Runs a package's build from the very folder that it was written to. With that folder on PYTHONPATH, whatever
# else is in it (json.py, torch.py) would stand before the standard library and PyTorch; at the end of the
# path, an older installation of the package would stand before it.
_FROM_FOLDER = """
import importlib.machinery, runpy, sys
name, folder = sys.argv[1:3]
del sys.argv[1:3]

class There:
    @staticmethod
    def find_spec(wanted, path=None, target=None):
        return importlib.machinery.PathFinder.find_spec(name, [folder]) if wanted == name else None

sys.meta_path.insert(0, There)
runpy.run_module(name + ".runtime", run_name="__main__", alter_sys=True)
"""


@click.command("build", short_help="Build the extension of generated/.")
@click.option(
    "--recompile",
    is_flag=True,
    help="Compile the cubins anew too; each stays off until it was checked on its GPU.",
)
@options.json_option
def command(recompile: bool, as_json: bool) -> int:
    """Build the extension of generated/ if it is missing or stale, and verify what this machine can run."""
    recompiled = _recompile() if recompile else []
    report = {**run_build(_OWN, None, rebuild=recompile), "recompiled": recompiled}
    if as_json:
        print_json(report)
    else:
        _show(report)
    return 0 if report["status"] == "ok" else 1


def run_build(package: str, folder: Path | None, *, rebuild: bool = False) -> dict[str, Any]:
    """Builds a package in a process of its own: one that holds an older extension could not load the new one.

    Args:
        package: its import name.
        folder: the folder that it is in, and is taken from; None when it is importable as it is.
        rebuild: even when it is built already; only of what is importable, as the build then starts over.

    Raises:
        ColdforgeError: it cannot be built or loaded; the message is the build's own.
    """
    start = ["-m", f"{package}.runtime"] if folder is None else ["-c", _FROM_FOLDER, package, str(folder)]
    run = subprocess.run(
        [sys.executable, *start, "--json", *(["--rebuild"] if rebuild else [])],
        # The folder that the command is given in is no place to import from: an older copy of the package may
        # be there, or a file with the name of a module. By the environment, since the build may start over.
        env={**os.environ, "PYTHONSAFEPATH": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    try:
        report = json.loads(run.stdout)
    except ValueError:
        raise ColdforgeError(f"building {package} ended with status {run.returncode}") from None
    if "reason" in report:
        raise ColdforgeError(report["reason"])
    if folder is not None:
        _check_inside(report["extension"], folder / package)
    return report


def _check_inside(extension: str | None, package: Path) -> None:
    """Raises ColdforgeError unless what was built is the package that was meant."""
    root = os.path.realpath(package)  # the package names its files so
    if extension is None or not Path(extension).is_relative_to(root):
        raise ColdforgeError(f"building {package} gave {extension or 'nothing'}, and no extension in it")


def _recompile() -> list[str]:
    """Compiles every frozen cubin anew and freezes the result; returns the entries whose binary changed."""
    from ...codegen.freeze import GENERATED, freeze, load_winners
    from ...codegen.freeze.namespace import REPOSITORY_NAMESPACE

    winners = load_winners(GENERATED)
    fresh = [_recompiled(winner) if winner.kind == "cuda" else winner for winner in winners]
    changed = [new.name for old, new in zip(winners, fresh, strict=True) if old != new]
    if changed:
        freeze(fresh, GENERATED, REPOSITORY_NAMESPACE)
    return changed


def _recompiled(winner: Winner) -> Winner:
    """The winner with a new cubin, unverified; the same winner when the bytes come out the same."""
    from ...codegen.compile import Cache, compile_source
    from ...codegen.home import writable_home
    from ...codegen.render import SYMBOL, KernelSource
    from ...codegen.settings import load_settings
    from ...codegen.target import Target

    source = KernelSource(winner.source_text, SYMBOL, winner.source_digest, winner.source_name, "cuda")
    cache = Cache(writable_home(load_settings().home) / "cache")
    artifact = compile_source(source, Target.from_dict(winner.target), cache)
    binary = artifact.path.read_bytes()
    if binary == winner.binary:
        return winner
    return dataclasses.replace(
        winner,
        binary=binary,
        compiler=artifact.compiler,
        flags=artifact.flags,
        resources=artifact.resources.to_dict(),
        verified=False,
    )


def _show(report: dict[str, Any]) -> None:
    if not report["entries"]:
        click.echo("generated/ holds no frozen kernel yet: run coldforge tune OP, then coldforge freeze OP")
        return
    click.echo(
        f"{report['extension']}: {report['entries']} entries, {len(report['enabled'])} variants enabled"
    )
    for name in report["recompiled"]:
        click.echo(f"recompiled: {name} (off until it was checked on its GPU)")
    for name, result in report["variants"].items():
        if not result["ok"]:
            click.echo(f"off: {name}: {result['why']}", err=True)
