# SPDX-License-Identifier: Apache-2.0
"""Checks a variant against float64 before it may be dispatched here.

A cpu variant is compiled on the user's machine, so what was verified when it was tuned is its source, not
its machine code: each one is checked once after the build, on ragged shapes. A cubin is the measured
binary and needs no check, unless it was recompiled since. PTX is checked on each architecture that has
nothing better, by the first call that needs it. The record stands beside the extension.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .arguments import PRECISIONS
from .build import RECORD, build_folder
from .extension import Extension
from .manifest import Manifest, PackageError

if TYPE_CHECKING:
    from .frozen import FrozenOp, ReducingChain

# Times eps * sqrt(terms) * sum|terms|: twice the least round factor that rejects no correctly rounded sum,
# since this looks for miscompiled code, and another math library may round the epilogue differently.
_BOUND_FACTOR = 4.0
_EPILOGUE_FACTOR = 8.0
_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def record_path(manifest: Manifest) -> Path:
    """Where the results of this machine's checks are kept."""
    return build_folder(manifest) / RECORD


def read_record(manifest: Manifest) -> dict[str, Any]:
    """Variant -> result of its check: ``ok``, ``error`` (relative L2), ``ratio`` (to the bound), ``why``."""
    try:
        record = json.loads(record_path(manifest).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(record, dict):
        return {}
    return {name: result for name, result in record.items() if _is_result(result)}


def _is_result(result: Any) -> bool:
    return isinstance(result, dict) and isinstance(result.get("ok"), bool) and "why" in result


def enable_verified(manifest: Manifest, extension: Extension) -> bool:
    """Enables every variant that is known to be right.

    Returns:
        Whether nothing that might run here is left to check.
    """
    record = read_record(manifest)
    pending = False
    for number, entry in _by_number(manifest, extension):
        if extension.is_portable(number):
            continue
        if not _needs_check(entry):
            extension.enable(number, True)
        elif extension.variants[number] in record:
            extension.enable(number, record[extension.variants[number]]["ok"])
        else:  # whether there is such a GPU is asked at the first call, not at import
            pending = pending or entry["target"]["kind"] == "cuda" or extension.runs_here(number)
    return not pending


def verify_missing(
    manifest: Manifest, extension: Extension, operators: Mapping[str, FrozenOp]
) -> dict[str, Any]:
    """Checks each variant that this machine can run and that has no record, enables the good ones, and
    records all.

    Returns:
        The whole record.
    """
    record = read_record(manifest)
    fresh = {}
    for number, entry in _by_number(manifest, extension):
        name = extension.variants[number]
        if name in record or extension.is_portable(number) or not _needs_check(entry):
            continue
        if not _can_check(extension, number, entry):
            continue
        fresh[name] = _check_variant(extension, number, entry, _operator(entry, operators))
        _enable(extension, number, name, fresh[name])
    return _recorded(manifest, record, fresh)


def verify_portable(manifest: Manifest, extension: Extension, op: FrozenOp, tensor: Tensor) -> dict[str, Any]:
    """Checks the operator's PTX of the tensor's dtype on the tensor's GPU, enables what is right, and records
    all; what has a record for GPUs of that architecture is believed.

    Returns:
        The whole record: ``<variant> on sm_NN`` -> result.
    """
    major, minor = torch.cuda.get_device_capability(tensor.device)
    record, fresh = read_record(manifest), {}
    for number, entry in _by_number(manifest, extension):
        if not extension.is_portable(number) or entry["operator"] != op.name:
            continue
        least = int(extension.variants[number].rpartition("@compute_")[2])
        if _DTYPES[entry["dtype"]] != tensor.dtype or least > 10 * major + minor:
            continue
        name = f"{extension.variants[number]} on sm_{major}{minor}"
        if name not in record:
            with torch.cuda.device(tensor.device):
                result = _check_variant(extension, number, entry, _operator(entry, {op.name: op}))
            if not result.get("ran", True):  # the driver does not take it: another may, and nothing is wrong
                continue
            fresh[name] = result
        _enable(extension, number, name, {**record, **fresh}[name])
    return _recorded(manifest, record, fresh)


def _enable(extension: Extension, number: int, name: str, result: Mapping[str, Any]) -> None:
    extension.enable(number, result["ok"])
    if not result["ok"]:
        print(f"coldforge: {name} is wrong on this machine and stays off: {result['why']}", file=sys.stderr)


def _recorded(manifest: Manifest, record: dict[str, Any], fresh: Mapping[str, Any]) -> dict[str, Any]:
    if fresh:
        record = {**record, **fresh}
        _write_record(record_path(manifest), record)
    return record


def _write_record(path: Path, record: Mapping[str, Any]) -> None:
    # A package on a read-only disk is checked by every process again.
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        os.replace(partial, path)
    except OSError:
        return


def _by_number(manifest: Manifest, extension: Extension) -> Iterator[tuple[int, dict[str, Any]]]:
    entries = {entry["name"]: entry for entry in manifest.entries}
    for number, name in enumerate(extension.variants):
        entry = entries.get(name.rpartition("@")[0])
        if entry is None:
            raise PackageError(f"manifest.json has no entry of {name}; run `coldforge freeze`")
        yield number, entry


def _operator(entry: Mapping[str, Any], operators: Mapping[str, FrozenOp]) -> FrozenOp:
    """The operator of an entry, whose check it must be able to call.

    Raises:
        PackageError: the manifest says otherwise than the package's own files.
    """
    op = operators.get(entry["operator"])
    named = op is not None and list(entry["attributes"]) == list(op.attributes)
    if op is None or not named or not all(set(op.tensors) == set(shapes) for shapes in entry["checks"]):
        raise PackageError(
            f"manifest.json: {entry['name']} does not fit its operator; run `coldforge freeze`"
        )
    return op


def _needs_check(entry: Mapping[str, Any]) -> bool:
    return entry["target"]["kind"] == "cpu" or not entry["verified"]


def _can_check(extension: Extension, number: int, entry: Mapping[str, Any]) -> bool:
    if entry["target"]["kind"] == "cpu":
        return extension.runs_here(number)
    if not torch.cuda.is_available():
        return False
    major, minor = torch.cuda.get_device_capability()
    return entry["target"]["arch"].rstrip("a") == f"sm_{major}{minor}"


def _check_variant(extension: Extension, number: int, entry: dict[str, Any], op: FrozenOp) -> dict[str, Any]:
    """Runs one variant on every check shape of its entry."""
    worst, error = 0.0, 0.0
    if not entry["checks"]:
        return {"ok": False, "why": "there is no shape to check it at", "ratio": None, "error": None}
    for index, shapes in enumerate(entry["checks"]):
        try:
            arguments = _arguments(entry, op, shapes, index)
            with torch.no_grad():
                expected, allowed = _expectation(entry, op, arguments)
        except (ValueError, TypeError) as error:
            why = f"it cannot be checked at {shapes}: {error}"
            return {"ok": False, "why": why, "ratio": None, "error": None}
        with torch.no_grad(), extension.only(number):
            output = op.overload(*arguments)
        if extension.last() != extension.variants[number]:
            why = f"the kernel did not run at {shapes}"
            return {"ok": False, "ran": False, "why": why, "ratio": None, "error": None}
        difference = (output.double().cpu() - expected).abs()
        ratio = float(
            torch.where(difference == 0, 0.0, difference / allowed).nan_to_num(math.inf, math.inf).max()
        )
        worst = max(worst, ratio)
        error = max(error, float(difference.norm() / expected.norm()))
        if not ratio <= 1:
            why = f"{ratio:.3g} times the error allowed at {shapes}"
            return {"ok": False, "why": why, "ratio": None if math.isinf(ratio) else ratio, "error": None}
    return {"ok": True, "why": "", "ratio": worst, "error": error}


def _arguments(entry: dict[str, Any], op: FrozenOp, shapes: Mapping[str, Any], seed: int) -> list[Any]:
    """Seeded inputs of the given shapes.

    The data has an offset for each sample and channel: the mean of a plane that has none is all but 0, and
    says little. The filters are scaled so that outputs are near 1; channel vectors stay away from 0.
    """
    generator = torch.Generator().manual_seed(1000 + seed)
    device = "cuda" if entry["target"]["kind"] == "cuda" else "cpu"
    tensors: list[Tensor | None] = []
    for place, name in enumerate(op.tensors):
        shape = shapes[name]
        if shape is None:
            tensors.append(None)
        elif place < op.own_tensor_count:
            tensors.append(torch.randn(shape, generator=generator))
        else:
            tensors.append(torch.rand(shape, generator=generator) + 0.5)
    attributes = entry["attributes"].values()
    data, filters = tensors[0], tensors[1] if op.own_tensor_count > 1 else None
    if data is not None and data.dim() > 2:
        planes = (*data.shape[:2], *[1] * (data.dim() - 2))
        data += 4 * torch.rand(planes, generator=generator) - 2
    if filters is not None and filters.dim() > 1:
        filters /= math.sqrt(op.reduction_length(op.sizes(*tensors, *attributes)))
    there = [None if t is None else t.to(device, _DTYPES[entry["dtype"]]) for t in tensors]
    return [*there, *op.scalars.values(), *attributes, entry["precision"]]


def _expectation(entry: dict[str, Any], op: FrozenOp, arguments: Sequence[Any]) -> tuple[Tensor, Tensor]:
    """The result in float64 and how far a kernel of the entry's error class may be from it, element by
    element.
    """
    tensors, scalars, attributes = op.split(arguments)
    wide = [None if t is None else t.double().cpu() for t in tensors]
    own, vectors = wide[: op.own_tensor_count], wide[op.own_tensor_count :]
    eps = PRECISIONS[entry["precision"]]
    v = op.linear(*own, *attributes)
    if op.magnitude:
        scale = op.magnitude(*own, *attributes)
    else:  # one scale for all, in which a sum does not cancel
        positive = op.linear(*(None if t is None else t.abs() for t in own), *attributes)
        scale = torch.maximum(v.abs().amax(), positive.abs().amax()).expand_as(v)
    slack = scale * (_BOUND_FACTOR * eps * math.sqrt(op.reduction_length(op.sizes(*wide, *attributes))))

    def chain(part: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda value: part(value, *vectors, *scalars)

    def pointwise(part: Callable[..., Tensor], v: Tensor, slack: Tensor) -> tuple[Tensor, Tensor]:
        exact, moved = _moved(chain(part), v, slack)
        return exact, moved + exact.abs() * (_EPILOGUE_FACTOR * eps)

    if op.reducing is None:
        exact, slack = pointwise(op.epilogue, v, slack)
    else:
        v, slack = pointwise(op.reducing.before, v, slack)
        v, slack = _reduced(op.reducing, v, slack, eps)
        exact, slack = pointwise(op.reducing.after, v, slack)
    return exact, slack + torch.finfo(torch.float32).tiny


def _moved(function: Callable[[Tensor], Tensor], v: Tensor, slack: Tensor) -> tuple[Tensor, Tensor]:
    """The function's result, and how far it is from it when ``v`` is off by ``slack``."""
    exact = function(v)
    above, below = (function(value).sub(exact).abs() for value in (v + slack, v - slack))
    return exact, torch.maximum(above, below)


def _reduced(chain: ReducingChain, v: Tensor, slack: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The reduced values, and how far a kernel's may be from them. A reduction grows with each value, so all
    of them off to one side is the worst; its own rounding comes on top.
    """
    row = chain.reduction

    def reduce(value: Tensor) -> Tensor:
        return row.reference(value, chain.axes, chain.keepdim)

    exact, moved = _moved(reduce, v, slack)
    count = math.prod(v.shape[axis] for axis in chain.axes)
    if row.scale == "result":  # a maximum and a logarithm: they may cancel, and their errors do not
        return exact, moved + (exact.abs() + 1 + math.log(count)) * (row.roundings * eps)
    terms = reduce(v.abs()) if row.scale == "terms" else torch.zeros_like(exact)
    return exact, moved + terms * (row.roundings * eps * math.sqrt(count))
