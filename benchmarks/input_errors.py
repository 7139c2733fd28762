# SPDX-License-Identifier: Apache-2.0
"""How far a frozen operator is from float64 on each kind of inputs, PyTorch eager beside it.

    python benchmarks/input_errors.py conv_transpose2d_mean_logsumexp --workload seed --samples 4 \
        --kinds offset common_offset normal --out errors.json
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any

import torch
from coldforge import generated
from coldforge.codegen.atomic import write_text
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.problem import Problem, make_problem
from coldforge.generated.runtime import package
from coldforge.tuner.bound import Expectation, expect, judge
from coldforge.tuner.inputs import draw
from steps import one_line, this_command


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("operator")
    parser.add_argument("--workload", default="small")
    parser.add_argument("--samples", type=int, help="batch size instead of the workload's")
    parser.add_argument("--kinds", nargs="+", default=["normal", "offset"])
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def _figures(output: torch.Tensor, expected: Expectation) -> dict[str, float]:
    judged = judge(output, expected)
    worst = (output.double() - expected.reference).abs().max()
    return {"max_abs_error": float(worst), "relative_l2": judged.error, "of_bound": judged.ratio}


def errors(problem: Problem, kind: str, device: str) -> dict[str, Any]:
    """The figures of one kind of inputs: the bound, the frozen kernel, PyTorch eager in fp32."""
    tensors = {name: value.to(device) for name, value in draw(problem, kind).items()}
    expected = expect(problem, tensors, problem.scalars, problem.dtype.name)
    given = [tensors.get(spec.name) for spec in problem.tensors]
    with torch.no_grad():
        frozen = getattr(generated, problem.operator.name)(*given, **problem.scalars, **problem.attributes())
        eager = problem.reference(tensors)
    return {
        "largest_output": float(expected.reference.abs().max()),
        "bound": float(expected.tolerance.max()),
        "frozen": _figures(frozen, expected),
        "eager": _figures(eager, expected),
    }


def main() -> int:
    """Prints, and writes if asked, one JSON document."""
    options = _options()
    shape = {"N": options.samples} if options.samples else {}
    problem = make_problem(catalogue().operator(options.operator), options.workload, shape)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.allow_tf32 = False
    kinds = {kind: errors(problem, kind, device) for kind in options.kinds}
    extension = package.STATE.extension
    document = {
        "command": this_command(),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "torch": importlib.metadata.version("torch"),
        "variant": extension.last() if extension is not None else None,
        "problem": problem.to_dict(),
        "kinds": kinds,
    }
    text = json.dumps(document, indent=1) + "\n"
    print(text, end="")
    if options.out is not None:
        write_text(options.out, text)
    return 0


if __name__ == "__main__":
    sys.exit(one_line(main))
