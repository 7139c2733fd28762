# SPDX-License-Identifier: Apache-2.0
"""``coldforge bench``: the frozen kernel against PyTorch eager, torch.compile and the peers that its family
declares, timed in turns."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import click

from ...codegen.errors import ColdforgeError, InputError
from ...codegen.home import writable_home
from ...codegen.settings import load_settings
from ...codegen.target import detect
from . import options
from .bench_table import print_bench
from .output import print_json


@click.command("bench", short_help="Time a frozen kernel against PyTorch eager and compile.")
@click.argument("operator", metavar="OP")
@options.target_option("auto", "cuda", "cpu", default="auto")
@options.workload_option
@options.shape_option
@options.dtype_option
@options.precision_option
@click.option("--package", metavar="NAME", help="A package of `freeze --package`, not generated/.")
@click.option("--out", metavar="DIR", help="The folder that holds NAME [default: it is on PYTHONPATH].")
@options.templates_option
@options.json_option
def command(
    operator: str,
    target: str,
    workload: str | None,
    shape: str | None,
    dtype: str,
    precision: str | None,
    package: str | None,
    out: str | None,
    templates: tuple[str, ...],
    as_json: bool,
) -> None:
    """Time the frozen kernel of OP against PyTorch eager and torch.compile, interleaved.

    Its family may declare further peers. Every row's error is against float64; a yardstick, such as reading
    the data once, has none. A peer that cannot run is a row with a reason.
    """
    from rich.console import Console

    from ..bench import bench

    catalogue = options.catalogue_for(operator, templates)
    declared = catalogue.operator(operator)
    device = detect(target)
    problem = options.problem_from_options(declared, device.kind, workload, shape, dtype, precision)
    settings = load_settings()
    writable_home(settings.home)
    console = Console(stderr=True)
    with console.status(f"timing {operator} on {device.device}: frozen, eager, compile"):
        found = bench(
            problem,
            device,
            settings,
            precision=problem.precision,
            package=_importable(package, out),
            roots=catalogue.roots[1:],
        )
    if as_json:
        print_json(found)
    else:
        print_bench(found)
    if found["status"] != "ok":
        ratio = found["rows"][0]["bound_ratio"]
        raise ColdforgeError(f"the frozen kernel is wrong: {ratio:.3g} times its bound")


def _importable(package: str | None, out: str | None) -> str:
    """The package's import name; its folder is put on the path, which the worker inherits.

    Raises:
        InputError: there is no such package.
    """
    if package is None:
        if out is not None:
            raise InputError("--out DIR says where a package is; name it with --package NAME")
        return "coldforge.generated"
    if not package.isidentifier():
        raise InputError(f"--package {package!r} is no package name")
    if out is None:
        spec = importlib.util.find_spec(package)
        place = Path(spec.origin).parent if spec is not None and spec.origin else None
        if place is None:
            raise InputError(
                f"no package {package!r} is on PYTHONPATH; say --out DIR, the folder that holds it"
            )
    else:
        place = Path(out).absolute() / package
        sys.path.insert(0, str(place.parent))
    if not (place / "manifest.json").is_file():
        raise InputError(f"{place} is not a package of frozen kernels")
    return package
