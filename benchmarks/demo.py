# SPDX-License-Identifier: Apache-2.0
"""The whole job on this machine: tune, freeze into a package of its own, import it, compare it with PyTorch.

Run by `make demo`. Everything it makes lies under --out; the repository's own generated/ stays as it is.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

OPERATOR = "conv2d_divide_leaky_relu"
PACKAGE = "demo_kernels"


def main() -> int:
    """Parses the arguments and runs the four steps; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", default="build/demo", help="folder for studies, compiled variants and the package"
    )
    parser.add_argument("--target", default="auto", choices=("auto", "cuda", "cpu"))
    parser.add_argument("--trials", default="60", help="configs to try at most")
    parser.add_argument("--seconds", default="75", help="time for the search")
    options = parser.parse_args()
    out = Path(options.out).absolute()
    os.environ["COLDFORGE_HOME"] = str(out / "home")
    limits = ["--trials", options.trials, "--time-budget", options.seconds]
    steps = [
        ["tune", OPERATOR, "--target", options.target, *limits],
        ["freeze", OPERATOR, "--package", PACKAGE, "--out", str(out)],
        ["bench", OPERATOR, "--target", options.target, "--package", PACKAGE, "--out", str(out)],
    ]
    for step in steps:
        code = _coldforge(step)
        if code != 0:
            return code
    print(f"\nThe package is {out / PACKAGE}; with {out} on sys.path: from {PACKAGE} import {OPERATOR}")
    return 0


def _coldforge(arguments: list[str]) -> int:
    from coldforge.tuner.cli import run

    print(f"\n$ coldforge {shlex.join(arguments)}", file=sys.stderr, flush=True)
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
