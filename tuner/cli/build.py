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


def run_build(package: str, path: Path | None, *, rebuild: bool = False) -> dict[str, Any]:
    """Builds a package in a process of its own: one that holds an older extension could not load the new one.

    Args:
        package: its import name.
        path: the folder it is imported from; None when it is importable as it is.
        rebuild: even when it is built already.

    Raises:
        ColdforgeError: it cannot be built or loaded; the message is the build's own.
    """
    environment = dict(os.environ)
    if path is not None:
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, [str(path), environment.get("PYTHONPATH", "")])
        )
    command = [sys.executable, "-m", f"{package}.runtime", "--json", *(["--rebuild"] if rebuild else [])]
    run = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False
    )
    try:
        report = json.loads(run.stdout)
    except ValueError:
        raise ColdforgeError(f"building {package} ended with status {run.returncode}") from None
    if "reason" in report:
        raise ColdforgeError(report["reason"])
    return report


def _recompile() -> list[str]:
    """Compiles every frozen cubin anew and freezes the result; returns the entries whose binary changed."""
    from ...codegen.freeze import GENERATED, freeze, load_winners
    from ...codegen.freeze.package import REPOSITORY_NAMESPACE

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
