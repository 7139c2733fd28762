# SPDX-License-Identifier: Apache-2.0
"""The C++ table of a package: its operators, their entries, and how each entry is launched."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..dtypes import DTYPES, PRECISIONS
from ..errors import InputError
from ..expr import Value, evaluate, evaluate_int
from .fold import depends_on, fold_to_cpp
from .portable import ptx_facts
from .signature import ShapeRead, Signature
from .templates import environment
from .units import Image, all_units, cubins_by_entry, entry_units, level_of, ptx_by_entry
from .winner import OTHER_SIZES, Winner

# Facts of the machine at hand, not of the one it was tuned on.
_MACHINE_NAMES = {"sm_count": "_machine.sm_count", "threads": "_machine.threads"}


def render_table(signatures: Sequence[Signature], winners: Sequence[Winner], namespace: str) -> str:
    """The text of ``kernels/table.cpp``.

    Args:
        signatures: the operators, sorted by name.
        winners: the entries, in the manifest's order.
        namespace: of the PyTorch operators.
    """
    cubins, portable = cubins_by_entry(winners), ptx_by_entry(winners)
    variants: list[dict[str, Any]] = []
    first: dict[str, tuple[int, int]] = {}
    for winner in winners:
        own = _variants(winner, cubins, portable)
        first[winner.name] = (len(variants), len(own))
        variants += own
    context = {
        "namespace": namespace,
        "units": all_units(winners),
        "seconds": sorted({unit.symbol for w in winners if _finishes(w) for unit in entry_units(w)}),
        "cubins": [c for _, c in sorted({c.symbol: c for c in cubins.values()}.items())],
        "portable": [p for _, p in sorted({p.symbol: p for p in portable.values()}.items())],
        "variants": variants,
        "operators": [
            _operator(s, [w for w in winners if w.operator == s.operator.name], first) for s in signatures
        ],
    }
    return environment().get_template("table.cpp.jinja").render(context)


def variant_name(entry: str, arch: str) -> str:
    """What messages and the verification record call a variant."""
    return f"{entry}@{arch}"


def _finishes(winner: Winner) -> bool:
    """Whether some launch of a cpu winner asks for the source's second kernel."""
    return "finish_units" in winner.launch


def _variants(
    winner: Winner, cubins: Mapping[str, Image], portable: Mapping[str, Image]
) -> list[dict[str, Any]]:
    if winner.kind == "cuda":
        return _gpu_variants(winner, cubins.get(winner.name), portable.get(winner.name))
    rows = []
    for unit in entry_units(winner):
        guard = "AARCH64" if unit.machine == "aarch64" else "X86_64"
        rows.append(
            {
                "name": variant_name(winner.name, unit.arch),
                "level": level_of(unit.arch),
                "function": f"COLDFORGE_ON_{guard}({unit.symbol})",
                "image": "nullptr",
                "finish": f"COLDFORGE_ON_{guard}({unit.symbol}_finish)" if _finishes(winner) else "",
            }
        )
    return rows


def _gpu_variants(winner: Winner, cubin: Image | None, ptx: Image | None) -> list[dict[str, Any]]:
    """The measured binary, then what the driver of another architecture compiles."""
    row = {"function": "nullptr", "finish": ""}
    rows = []
    if cubin is not None:
        name = variant_name(winner.name, winner.arch)
        rows.append({**row, "name": name, "level": level_of(winner.arch), "image": cubin.symbol})
    if ptx is not None:
        facts = ptx_facts(ptx.data.decode("ascii"))
        name = variant_name(winner.name, facts.arch)
        row |= {"name": name, "level": facts.least, "image": ptx.symbol, "finish": f"nullptr, {facts.isa}"}
        rows.append(row)
    return rows


def _operator(
    signature: Signature, winners: Sequence[Winner], first: Mapping[str, tuple[int, int]]
) -> dict[str, Any]:
    family, operator = signature.family, signature.operator
    names, reads = signature.value_names, signature.size_reads
    fixed = [tuple((n, int(w.specialisation[n])) for n in signature.fixed_names) for w in winners]
    specialisations = sorted(set(fixed))
    output_names = sorted(set().union(*(e.names for e in signature.output_shape)))
    scaled = {n: f"_in.size[{r.tensor}][{r.dim}] * {r.factor}" for n, r in reads.items() if r.factor}
    return {
        "name": operator.name,
        "schema": signature.schema,
        "reference_schema": signature.reference_schema,
        "value_names": names,
        "sizes": family.abi_sizes,
        "fixed": signature.fixed_names,
        "tensors": [
            {
                "name": t.name,
                "rank": len(t.shape),
                "number": number,
                "optional": t.optional,
                "present_name": f"has_{t.name}" if t.optional else "",
            }
            for number, t in enumerate(signature.tensors)
        ],
        "optional": ["true" if t.optional else "false" for t in signature.tensors],
        "scalar_count": len(operator.scalars),
        "attribute_lengths": [len(a.value_names) if a.pair else 0 for a in signature.attributes],
        "attribute_values": [
            {"name": n, "minimum": a.minimum} for a in signature.attributes for n in a.value_names
        ],
        "reads": [{"name": n, "tensor": r.tensor, "dim": r.dim} for n, r in reads.items() if not r.factor],
        # Those that are read with the help of an attribute come first: others are computed from them.
        "derived": [{"name": n, "cpp": text} for n, text in scaled.items()]
        + [{"name": n, "cpp": fold_to_cpp(e.text, {}, names)} for n, e in family.derived.items()],
        "rules": [
            {"cpp": fold_to_cpp(rule.require.text, {}, names), "reason": f'"{_c_text(rule.reason)}"'}
            for rule in family.rules
        ],
        "checks": [_shape_check(signature, check) for check in signature.shape_checks],
        "output_names": output_names,
        "output": [fold_to_cpp(e.text, {}, names) for e in signature.output_shape],
        "word_count": len(signature.tensors) + 2 + len(family.abi_sizes) + len(operator.scalars),
        "specialisations": specialisations,
        "entries": [
            {**_entry(signature, w, *first[w.name]), "specialisation": specialisations.index(f)}
            for w, f in zip(winners, fixed, strict=True)
        ],
    }


def _shape_check(signature: Signature, check: ShapeRead) -> dict[str, Any]:
    tensor = signature.tensors[check.tensor]
    return {
        "tensor": check.tensor,
        "dim": check.dim,
        "name": tensor.name,
        "shape": ", ".join(e.text for e in tensor.shape),
        "optional": tensor.optional,
        "cpp": fold_to_cpp(check.expression.text, {}, signature.value_names),
    }


def _entry(signature: Signature, winner: Winner, first: int, count: int) -> dict[str, Any]:
    locals_, launch = launch_code(signature, winner)
    return {
        "name": winner.name,
        "summary": ", ".join(f"{k}={v}" for k, v in winner.config.items()),
        "locals": locals_,
        "launch": launch,
        "kind": winner.kind,
        "model": _c_text(winner.device),
        "level": level_of(winner.arch),
        "dtype": winner.dtype,
        "eps": PRECISIONS[winner.precision].hex(),
        "measured": [_measured(signature, winner, *one) for one in _measurements(winner)],
        "cuda_major": cuda_major(winner),
        "has_workspace": "true" if "workspace_bytes" in winner.launch else "false",
        "first_variant": first,
        "variant_count": count,
    }


def _measurements(winner: Winner) -> list[tuple[Mapping[str, int], float]]:
    """At which sizes the winner was measured, the tuned ones first, and what it took there."""
    rows = [(row["sizes"], float(row["time_ms"])) for row in winner.measurement.get(OTHER_SIZES) or ()]
    own = [time_ms for sizes, time_ms in rows if sizes.items() <= winner.workload.items()]
    others = [row for row in rows if not row[0].items() <= winner.workload.items()]
    return [(winner.workload, own[0] if own else winner.time_ms), *others]


def _measured(
    signature: Signature, winner: Winner, sizes: Mapping[str, int], time_ms: float
) -> dict[str, Any]:
    values = signature_values(signature, winner, sizes)
    return {
        "sizes": [int(values[name]) for name in signature.family.abi_sizes],
        "time_ms": repr(time_ms),
        "work": repr(float(_work(signature, winner, values))),
    }


def signature_values(
    signature: Signature, winner: Winner, sizes: Mapping[str, int] | None = None
) -> dict[str, Value]:
    """Every value of a shape by name, derived ones included.

    Args:
        sizes: what is not as in the tuned shape.
    """
    values: dict[str, Value] = {**winner.workload, **(sizes or {}), **winner.specialisation}
    values["dtype_bytes"] = DTYPES[winner.dtype].bytes
    for name, expression in signature.family.derived.items():
        values[name] = expression.evaluate(values)
    return values


def _work(signature: Signature, winner: Winner, values: Mapping[str, Value]) -> int:
    """The launch's `work` at a shape, on the device that the winner was tuned on."""
    known = {**winner.target["attributes"], **values}
    known |= {**winner.config, "precision": winner.precision}
    for name, text in winner.derived.items():
        known[name] = evaluate(text, known)
    return evaluate_int(_launch(signature, winner)["work"], known)


def _launch(signature: Signature, winner: Winner) -> dict[str, str]:
    """The launch's expressions. Work that a space does not declare grows with each run-time size."""
    return {"work": " * ".join(signature.family.run_time) or "1", **winner.launch}


def launch_code(signature: Signature, winner: Winner) -> tuple[list[dict[str, str]], list[tuple[str, str]]]:
    """C++ locals and assignments that compute the launch geometry from the run-time sizes."""
    late = {name: f"_v[Value::{name}]" for name in signature.late_names}
    values = signature_values(signature, winner)
    known: dict[str, Value] = {**winner.target["attributes"]}
    known |= {n: v for n, v in values.items() if n not in late}
    known |= {**winner.config, "precision": winner.precision}
    computed: list[dict[str, str]] = []
    for name, text in winner.derived.items():
        if depends_on(text, {*late, *(c["name"] for c in computed)}):
            computed.append(
                {"name": name, "cpp": fold_to_cpp(text, known, [*late, *known, *_later(computed)])}
            )
        else:
            known[name] = evaluate(text, known)
    known = {
        n: v for n, v in known.items() if n not in _MACHINE_NAMES or n not in winner.target["attributes"]
    }
    late |= {n: text for n, text in _MACHINE_NAMES.items() if n in winner.target["attributes"]}
    names, texts = [*late, *_later(computed)], sorted(_launch(signature, winner).items())
    launch = [(name, fold_to_cpp(text, known, names)) for name, text in texts]
    used = [cpp for _, cpp in launch]
    needed: list[dict[str, str]] = []
    for local in reversed(computed):
        if _reads(used, local["name"]):
            needed.insert(0, local)
            used.append(local["cpp"])
    heads = [{"name": n, "cpp": text} for n, text in late.items() if _reads(used, n)]
    return heads + needed, launch


def _later(computed: Sequence[Mapping[str, str]]) -> list[str]:
    return [local["name"] for local in computed]


def _reads(texts: Sequence[str], name: str) -> bool:
    return any(re.search(rf"\b{re.escape(name)}\b", text) for text in texts)


def cuda_major(winner: Winner) -> int:
    """Major version of the compiler that made the cubin ("nvrtc 13.0" -> 13); 0 on cpu.

    Raises:
        InputError: a cuda winner whose compiler has no version.
    """
    if winner.kind != "cuda":
        return 0
    found = re.search(r"\b(\d+)\.\d+", winner.compiler)
    if found is None:
        raise InputError(f"entry {winner.name}: compiler {winner.compiler!r} names no version")
    return int(found.group(1))


def _c_text(text: str) -> str:
    """The inside of a C string literal."""
    return json.dumps(text, ensure_ascii=True)[1:-1]
