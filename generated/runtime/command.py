# SPDX-License-Identifier: Apache-2.0
"""`python -m <package>.runtime [--rebuild] [--json]`: builds the extension, verifies what this machine
can run.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from typing import Any

from . import build, package
from .manifest import PackageError, load


def main() -> int:
    """Builds and verifies; exit code 0 when every variant that can run here is right."""
    parser = argparse.ArgumentParser(prog=f"python -m {build.PACKAGE}.runtime", description=__doc__)
    parser.add_argument("--rebuild", action="store_true", help="even when it is built already")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    options = parser.parse_args()
    try:
        if options.rebuild:
            _rebuild(["--json"] if options.json else [])
        report = build_and_verify()
    except PackageError as error:
        report = {"status": "failed", "reason": str(error)}
    if options.json:
        print(json.dumps(report, indent=2, sort_keys=True))
    elif "reason" in report:
        print(f"coldforge: {report['reason']}", file=sys.stderr)
    else:
        print(summary(report))
    return 0 if report["status"] == "ok" else 1


def _rebuild(arguments: list[str]) -> None:
    """Builds this manifest's extension anew, then starts over: importing the package has loaded the old
    one.
    """
    found = load()
    if found.entries:
        build.build(found, again=True)
    os.execv(sys.executable, [sys.executable, "-m", f"{build.PACKAGE}.runtime", *arguments])


def build_and_verify() -> dict[str, Any]:
    """Builds the extension if needed, loads it, checks what has no record.

    Raises:
        PackageError: it cannot be built or loaded.
    """
    found = load()
    if not found.entries:
        return {"status": "ok", "extension": None, "entries": 0, "variants": {}, "enabled": []}
    path = build.build(found)
    importlib.import_module(build.PACKAGE)  # declares the operators
    package.prepare()
    extension = package.STATE.extension
    if extension is None:
        raise PackageError(package.STATE.why)
    record = package.STATE.record
    wrong = [name for name, result in record.items() if not result["ok"]]
    return {
        "status": "failed" if wrong else "ok",
        "extension": str(path),
        "entries": len(found.entries),
        "variants": record,
        "enabled": extension.enabled(),
    }


def summary(report: dict[str, Any]) -> str:
    """The report for a person."""
    if report["extension"] is None:
        return "nothing is frozen, so there is nothing to build"
    wrong = [name for name, result in report["variants"].items() if not result["ok"]]
    lines = [f"{report['extension']}: {report['entries']} entries, {len(report['enabled'])} variants enabled"]
    lines += [f"  off: {name}: {report['variants'][name]['why']}" for name in wrong]
    return "\n".join(lines)
