# SPDX-License-Identifier: Apache-2.0
"""The cpu template of conv_transpose2d_mean as it is rendered, and the faults that a verifier must see above
all."""

from __future__ import annotations

from dataclasses import replace

from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.problem import make_problem
from coldforge.codegen.render import render
from coldforge.codegen.target import cpu_target
from hand_kernels import Fault, HandKernel, Variant

OPERATOR = "conv_transpose2d_mean_logsumexp"


def _rendered(chosen: dict[str, int | str], **shape: int) -> HandKernel:
    operator, target = catalogue().operator(OPERATOR), cpu_target()
    fields = {"N": 2, "C_in": 4, "C_out": 6, "H": 40, "W": 36, **shape}
    problem = make_problem(operator, "small", fields)
    space = catalogue().space(operator, target, "collapsed")
    config = space.config({**dict(space.default), **chosen})
    text = render(space, problem, config, target).text
    return HandKernel(OPERATOR, fields, text, lambda p: space.launch(p, config, target), workspace=True)


PLAIN = _rendered({"LAUNCHES": "one", "SPLIT": 2})
PADDED = _rendered({"LAUNCHES": "two", "ACC": "kahan"}, padding=1)

_SUM = "total += double(sums[(int64_t(c) * C::SPLIT + part) * SUMS + t]);"
_TAP = "T(tap_sum(c + g, t))"

VARIANTS = {
    "template, one launch": Variant(PLAIN, []),
    "template, two launches, padded": Variant(PADDED, []),
}
FAULTS = {
    "x ignored": Fault(PLAIN, [(_SUM, "total += 0.5;")]),
    "x replaced by its global mean": Fault(
        PLAIN,
        [
            (
                _SUM,
                "for (int64_t q = 0; q < args.N * UNITS; ++q)"
                " total += double(partials[q * SUMS + t]) / double(args.N * UNITS);",
            ),
            ("[sums](int c, int t)", "[this](int, int t)"),
        ],
    ),
    "half of the rows": Fault(PLAIN, [(": H(H), W(W)", ": H((H + 1) / 2), W(W)")]),
    "half of the rows, doubled": Fault(
        PLAIN, [(": H(H), W(W)", ": H((H + 1) / 2), W(W)"), (_SUM, _SUM.replace("+= ", "+= 2 * "))]
    ),
    "channels of the weights permuted": Fault(PLAIN, [(_TAP, "T(tap_sum((c + g + 1) % P::C_in, t))")]),
    "a scalar's value written down": Fault(PLAIN, [("scale(float(args.scale))", "scale(10.0f)")]),
    "border sums missing": Fault(
        PADDED, [("BORDERED = Rows::BINS > 1 || Columns::BINS > 1;", "BORDERED = false;")]
    ),
    "counters not zeroed": Fault(PLAIN, [], relaunch=lambda launch: replace(launch, zeroed_bytes=0)),
    "second kernel not launched": Fault(PADDED, [], relaunch=lambda launch: replace(launch, finish_units=0)),
}
