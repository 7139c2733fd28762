# SPDX-License-Identifier: Apache-2.0
"""Which frozen variant answers: one function of the call and the machine, on a hundred thousand of them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.dtypes import PRECISIONS
from coldforge.codegen.expr import Value, parse
from coldforge.codegen.freeze import Winner
from coldforge.codegen.freeze.signature import Signature
from coldforge.codegen.freeze.winner import OTHER_SIZES
from coldforge.codegen.problem import make_problem

pytestmark = pytest.mark.build

OPERATOR = "conv2d_divide_leaky_relu"
CALLS = 100_000
SMALL = {"N": 4, "H": 32, "W": 32}
LARGE = {"N": 64, "H": 128, "W": 128}
GPU, OLD_GPU, OTHER_GPU = "NVIDIA H200", "NVIDIA A100", "NVIDIA H100"
CPU = "Test CPU"


def _winners(naive: Callable[..., Winner], cuda: Callable[..., Winner]) -> list[Winner]:
    """Entries of several machines, workloads, classes and specialisations; some of them tie."""

    def gpu(
        shape: Mapping[str, int],
        arch: str,
        device: str,
        time_ms: float,
        ptx: str | None = None,
        shared: int = 320,
        work: str = "max(TILES * ceil_div(W_out, 32) * 32, sm_count * 16 * N // N)",
        others: Sequence[tuple[Mapping[str, int], float]] = (),
        **changes: Any,
    ) -> Winner:
        like, base = naive(dict(shape)), cuda()
        if ptx is not None:  # PTX is a source's: each entry has one of its own
            text = f"// {arch} {ptx} {shared} {sorted(shape.items())}\n{base.source_text}"
            digest = hashlib.sha256(text.encode()).hexdigest()
            changes |= {"source_text": text, "source_digest": digest, "ptx": _ptx(ptx)}
            changes |= {"source_name": f"naive_{digest[:8]}"}
        declared = {"work": work} if work else {}
        changes |= {"launch": {**base.launch, **declared, "shared_bytes": str(shared)}}
        target = {**base.target, "arch": arch, "device": device}
        rows = [{"sizes": dict(sizes), "time_ms": ms} for sizes, ms in others]
        measured = {**base.measurement, "time_ms": time_ms, **({OTHER_SIZES: rows} if rows else {})}
        fields = {n: getattr(like, n) for n in ("specialisation", "workload", "workload_name")}
        fixed = {**like.specialisation, "dtype": changes.get("dtype", "fp32")}
        fields["specialisation"] = fixed | {n: changes.pop(n) for n in fixed if n in changes and n != "dtype"}
        return dataclasses.replace(base, target=target, measurement=measured, **{**fields, **changes})

    found = [
        naive(shape, arch=arch, device=f"{CPU} {arch}", time_ms=t)
        for shape, arch, t in (
            (SMALL, "x86-64-v2", 3.0),
            (LARGE, "x86-64-v3", 9.0),
            (SMALL, "x86-64-v3", 2.0),
            (SMALL, "x86-64-v4", 1.0),
        )
    ]
    found += [
        naive({**SMALL, "kernel_size": 1}, precision="tf32"),
        naive(SMALL, arch="x86-64-v3", device=f"{CPU} x86-64-v3", time_ms=1.5, workload="unbiased"),
        naive({**SMALL, "stride": 2}, time_ms=1.0),
        naive({**SMALL, "stride": 2}, device="Another CPU", time_ms=0.5),
        naive(SMALL, workload="unbiased"),
        gpu(SMALL, "sm_90", GPU, 0.2, "9.0 sm_80"),
        gpu(LARGE, "sm_90", GPU, 0.3, "9.5 sm_90"),
        gpu({**SMALL, "H": 64}, "sm_90", GPU, 0.3, "9.0 sm_80", shared=150_000),
        gpu({"N": 4, "H": 130, "W": 66}, "sm_90", GPU, 0.02, work="N * H_out * (64 if W_out <= 64 else 512)"),
        gpu({"N": 1, "H": 20, "W": 600}, "sm_90", GPU, 0.02, work=""),
        # Two that were measured at each other's sizes: what either expects there of the other is far off.
        gpu(
            {"N": 2, "H": 300, "W": 40}, "sm_90", GPU, 0.05, others=[({"H": 43, "W": 310}, 0.09)], has_bias=0
        ),
        gpu(
            {"N": 2, "H": 43, "W": 310},
            "sm_90",
            GPU,
            0.004,
            others=[({"H": 300}, 0.5), ({"H": 300, "W": 40}, 0.07), ({"N": 9, "H": 9, "W": 9}, 0.01)],
            has_bias=0,
        ),
        gpu(LARGE, "sm_90a", OTHER_GPU, 0.1),
        gpu(SMALL, "sm_80", OLD_GPU, 0.5, "8.4 sm_80"),
        gpu(SMALL, "sm_90", GPU, 0.1, precision="tf32"),
        gpu(SMALL, "sm_90", GPU, 0.1, dtype="fp16", precision="fp16"),
        gpu({**SMALL, "C_out": 7}, "sm_90", GPU, 0.1, compiler="nvrtc 14.0"),
    ]
    return found


def _ptx(facts: str) -> str:
    version, target = facts.split()
    return f".version {version}\n.target {target}\n.visible .entry coldforge_kernel(\n)\n{{ ret; }}\n"


@pytest.fixture(scope="module")
def package(
    tmp_path_factory: pytest.TempPathFactory,
    naive_winner: Callable[..., Winner],
    fake_cuda_winner: Callable[..., Winner],
    frozen_package: Callable[..., ModuleType],
) -> ModuleType:
    folder = tmp_path_factory.mktemp("dispatch")
    module = frozen_package(folder, "cf_dispatch", _winners(naive_winner, fake_cuda_winner))
    extension = module.runtime.package.STATE.extension
    portable = [n for n in range(len(extension.variants)) if extension.is_portable(n)]
    assert len(portable) == 4
    assert not {extension.variants[n] for n in portable} & set(extension.enabled())  # no GPU has checked it
    for number in portable:
        extension.enable(number, True)
    return module


@dataclasses.dataclass(frozen=True)
class Entry:
    """An entry of the manifest, as the rule below reads it."""

    name: str
    kind: str
    level: int
    model: str
    dtype: str
    eps: float
    cuda_major: int
    shared: int
    ptx: tuple[int, float] | None  # least capability, version
    work: Callable[[Mapping[str, int], int], int]  # of a call's values and the machine's processors
    fixed: Mapping[str, int]
    measured: tuple[tuple[tuple[int, ...], float, int], ...]  # sizes, ms, work; the tuned sizes first


def _level(arch: str) -> int:
    return (
        int("".join(c for c in arch.rpartition("v")[2] if c.isdigit()))
        if "v" in arch
        else int(arch[3:].rstrip("a"))
    )


def _work(entry: Mapping[str, Any]) -> Callable[[Mapping[str, int], int], int]:
    """How much a launch of the entry has to do, by the texts that its manifest holds."""
    target, launch = entry["target"], entry["launch"]
    work, derived = (
        parse(launch.get("work") or "N * H * W"),
        {n: parse(t) for n, t in entry["derived"].items()},
    )
    known = {**target["attributes"], **entry["config"], "precision": entry["precision"]}

    def work_of(values: Mapping[str, int], processors: int) -> int:
        env: dict[str, Value] = {**known, **values, "sm_count": processors, "threads": processors}
        for name, expression in derived.items():
            env[name] = expression.evaluate(env)
        return int(work.evaluate(env))

    return work_of


def _entries(package: ModuleType) -> list[Entry]:
    operator = catalogue().operator(OPERATOR)
    found = []
    for entry in json.loads((Path(package.__file__ or "").parent / "manifest.json").read_text())["entries"]:
        target, work = entry["target"], _work(entry)
        processors = target["attributes"]["sm_count" if target["kind"] == "cuda" else "threads"]
        rows = [{"sizes": {}, "time_ms": entry["measurement"]["time_ms"]}]
        measured = []
        for row in rows + entry["measurement"].get(OTHER_SIZES, []):
            values = {**entry["workload"], **entry["specialisation"], "dtype_bytes": 4, **row["sizes"]}
            for name, expression in operator.family.derived.items():
                values[name] = expression.evaluate(values)
            sizes = tuple(values[n] for n in operator.family.abi_sizes)
            measured.append((sizes, row["time_ms"], work(values, processors)))
        found.append(
            Entry(
                name=entry["name"],
                kind=target["kind"],
                level=_level(target["arch"]),
                model=target["device"],
                dtype=entry["dtype"],
                eps=PRECISIONS[entry["precision"]],
                cuda_major=int(entry["compiler"].split()[-1].split(".")[0])
                if target["kind"] == "cuda"
                else 0,
                shared=int(entry["launch"].get("shared_bytes", 0)),
                ptx=(int(entry["ptx"]["arch"][8:]), float(entry["ptx"]["isa"])) if "ptx" in entry else None,
                fixed={n: v for n, v in entry["specialisation"].items() if n != "dtype"},
                work=work,
                measured=tuple(measured),
            )
        )
    return found


# The newest PTX that a driver compiles, by the release notes of each CUDA version.
PTX_TAKEN = {11080: 7.8, 12040: 8.4, 12060: 8.5, 12090: 8.8, 13000: 9.0, 13050: 9.5, 14000: 10.0}


def _form(e: Entry, machine: Any) -> tuple[str, int] | None:
    """In which form an entry runs on a machine, and how good that is (0 is best)."""
    rank = 0 if e.model == machine.model else 1
    if e.kind == "cpu":
        if rank:
            rank = 9 - e.level if e.level <= machine.level else 16 + e.level
        return ("code", rank) if machine.level >= 2 else None
    if e.level == machine.level and e.cuda_major <= machine.driver // 1000:
        return "code", rank
    if e.ptx is None or e.ptx[0] > machine.level or e.ptx[1] > PTX_TAKEN[machine.driver]:
        return None
    return ("ptx", 2 + abs(e.level - machine.level)) if e.shared <= machine.max_shared_bytes else None


def _rule(
    entries: list[Entry], call: Mapping[str, int], dtype: str, precision: str, machine: Any
) -> tuple[Entry, str] | None:
    """What README and `select.h` promise, written down once more: what can run there; the same model, then
    (cpu) the highest level, (cuda) machine code, then PTX tuned on the nearest architecture; the tuned
    workload itself; the least time to expect by the measurement at the nearest sizes, which grows with the
    work but for the launch and counts 30 % more for each doubling of a size; the nearest."""
    sizes = [call[n] for n in catalogue().operator(OPERATOR).family.abi_sizes]
    best, best_key = None, None
    for e in entries:
        if e.kind != machine.kind or e.dtype != dtype or e.eps > PRECISIONS[precision]:
            continue
        if any(call[n] != v for n, v in e.fixed.items()):
            continue
        form = _form(e, machine)
        if form is None:
            continue
        distances = [_distance(sizes, measured[0]) for measured in e.measured]
        at = min(range(len(distances)), key=distances.__getitem__)
        _, time_ms, work = e.measured[at]
        ratio = e.work(call, machine.processors) / max(work, 1)
        least = 0.011 if e.kind == "cuda" and ratio < 1 else 0.0
        launch = min(least, 0.8 * time_ms)
        expected = (launch + (time_ms - launch) * ratio) * (1 + 0.3 * distances[at])
        key = (form[1], distances[0] > 0, round(expected, 12), round(distances[at], 12))
        if best_key is None or key < best_key:
            best, best_key = (e, form[0]), key
    return best


def _distance(one: Sequence[int], other: Sequence[int]) -> float:
    apart = sum(abs(math.log2((a + 1) / (b + 1))) for a, b in zip(one, other, strict=True))
    return apart + sum(0.1 * abs(_evenness(a) - _evenness(b)) for a, b in zip(one, other, strict=True))


def _evenness(size: int) -> int:
    return sum(size % factor == 0 for factor in (2, 4))


def _call(draw: random.Random) -> dict[str, int]:
    """The values of a random call; most fit some entry."""
    r = draw.choice([3, 3, 3, 1])
    stride = draw.choice([1, 1, 2])
    call = {
        "N": draw.choice([1, 4, 64, draw.randint(1, 300)]),
        "C_in": draw.choice([8, 8, 8, 3]),
        "H": draw.choice([32, 64, 128, draw.randint(r, 600)]),
        "W": draw.choice([32, 128, draw.randint(r, 600)]),
        "C_out": draw.choice([6, 6, 6, 7, 64]),
        "R": r,
        "S": r,
        "stride_h": stride,
        "stride_w": stride,
        "padding_h": 0,
        "padding_w": 0,
        "dilation_h": 1,
        "dilation_w": 1,
        "groups": 1,
        "has_bias": draw.choice([1, 1, 0]),
        "dtype_bytes": 4,
    }
    call["H_out"] = (call["H"] - r) // stride + 1
    call["W_out"] = (call["W"] - r) // stride + 1
    return call


def test_a_hundred_thousand_calls(package: ModuleType) -> None:
    extension = package.runtime.package.STATE.extension
    machine_of = package.runtime.extension.Machine
    entries, draw = _entries(package), random.Random(8)
    by_name = {e.name: e for e in entries}
    names = Signature(catalogue().operator(OPERATOR)).value_names
    machines = [
        machine_of("cpu", level, model, processors=threads)
        for level in (0, 2, 3, 4)
        for model, threads in ((f"{CPU} x86-64-v3", 2), (CPU, 1), ("?", 64))
    ]
    machines += [
        machine_of("cuda", level, model, driver, shared, processors)
        for level, model, shared, processors in (
            (90, GPU, 232_448, 132),
            (90, OTHER_GPU, 232_448, 114),
            (90, "NVIDIA GH200", 232_448, 144),
            (80, OLD_GPU, 166_912, 108),
            (86, "NVIDIA A40", 101_376, 84),
            (75, "NVIDIA T4", 65_536, 40),
            (100, "NVIDIA B200", 232_448, 148),
        )
        for driver in PTX_TAKEN
    ]
    answered = set()
    call, machine = _call(draw), machines[0]
    for _ in range(CALLS):
        again = (
            draw.random() < 0.2
        )  # what was selected for a call is remembered: half of these change nothing
        call = call if again else _call(draw)
        machine = machine if again and draw.random() < 0.5 else draw.choice(machines)
        dtype = draw.choice(["fp32", "fp32", "fp32", "fp16", "bf16"])
        precision = draw.choice([dtype, dtype, "tf32"])
        variant = extension.choose(OPERATOR, machine, dtype, precision, [call[n] for n in names])
        wanted = _rule(entries, call, dtype, precision, machine)
        if variant is None:
            assert wanted is None, (call, machine)
            continue
        entry, arch = variant.split("@")
        assert wanted is not None
        assert by_name[entry] == wanted[0], (call, machine, dtype, precision)
        if arch.startswith("compute_"):
            assert wanted[1] == "ptx"
            assert int(arch[8:]) <= machine.level
        else:
            assert wanted[1] == "code"
            level = _level(arch)
            assert level == machine.level if machine.kind == "cuda" else level <= machine.level
        answered.add((entry, arch))
    idle = set(by_name) - {entry for entry, _ in answered}
    assert not idle, [by_name[name] for name in idle]  # every entry had its turn
    portable = {entry for entry, arch in answered if arch.startswith("compute_")}
    assert portable == {e.name for e in entries if e.ptx is not None}


def test_the_workload_that_was_tuned_gets_its_own_entry(package: ModuleType) -> None:
    # The tuner keys by the operator, the problem and the device; on that device the call takes that winner.
    extension = package.runtime.package.STATE.extension
    machine_of = package.runtime.extension.Machine
    operator = catalogue().operator(OPERATOR)
    names = Signature(operator).value_names
    manifest = json.loads((Path(package.__file__ or "").parent / "manifest.json").read_text())
    for entry in manifest["entries"]:
        absent = {} if entry["specialisation"]["has_bias"] else {"bias": 0}
        problem = make_problem(operator, "small", {**entry["workload"], **absent}, entry["dtype"])
        assert dict(problem.specialisation) == entry["specialisation"]
        target = entry["target"]
        machine = machine_of(target["kind"], _level(target["arch"]), target["device"], 14000)
        values = [int(problem.values[n]) for n in names]
        found = extension.choose(OPERATOR, machine, entry["dtype"], entry["precision"], values)
        assert found is not None
        assert found.split("@")[0] == entry["name"]


def test_a_call_takes_what_was_chosen(package: ModuleType) -> None:
    extension = package.runtime.package.STATE.extension
    here = extension.this_cpu()
    op = package.runtime.package.OPERATORS[OPERATOR]
    draw = random.Random(3)
    for _ in range(20):
        n, h, w = draw.randint(1, 3), draw.randint(3, 40), draw.randint(3, 40)
        tensors = (torch.randn(n, 8, h, w), torch.randn(6, 8, 3, 3), torch.randn(6))
        values = op.sizes(*tensors, (1, 1), (0, 0), (1, 1), 1).values()
        getattr(package, OPERATOR)(*tensors)
        assert extension.last() == extension.choose(OPERATOR, here, "fp32", "fp32", list(values))
    with pytest.raises(KeyError):
        extension.choose("conv9d", here, "fp32", "fp32", [1])


def _taken(package: ModuleType, **shape: int) -> tuple[int, ...]:
    """The batch, height and width that the entry was tuned for which a call on the GPU takes."""
    extension = package.runtime.package.STATE.extension
    machine = package.runtime.extension.Machine("cuda", 90, GPU, 13000, 232_448, 132)
    operator = catalogue().operator(OPERATOR)
    problem = make_problem(operator, "small", {"C_in": 8, "C_out": 6, **shape})
    values = [int(problem.values[n]) for n in Signature(operator).value_names]
    name = extension.choose(OPERATOR, machine, "fp32", "fp32", values).split("@")[0]
    return next(e.measured[0][0][:3] for e in _entries(package) if e.name == name)


def test_what_is_nearer_gives_way_to_what_is_faster(package: ModuleType) -> None:
    # Tuned for 64 columns: for more of them it has eight times as much to do.
    taken = partial(_taken, package, N=4, H=128)
    assert taken(W=64) == taken(W=66) == (4, 130, 66)
    assert taken(W=67) == taken(W=68) == (64, 128, 128)


def test_what_was_measured_nearby_counts_and_what_was_not_does_not(package: ModuleType) -> None:
    # By what it took at its own sizes the second entry would be expected to take less everywhere.
    taken = partial(_taken, package, N=2, bias=0)
    assert taken(H=299, W=41) == taken(H=310, W=39) == (2, 300, 40)
    assert taken(H=41, W=299) == taken(H=39, W=310) == (2, 43, 310)


def test_what_was_selected_is_forgotten_when_variants_are_turned_off(package: ModuleType) -> None:
    extension = package.runtime.package.STATE.extension
    op = package.runtime.package.OPERATORS[OPERATOR]
    tensors = (torch.randn(1, 8, 9, 9), torch.randn(6, 8, 3, 3), torch.randn(6))
    values = list(op.sizes(*tensors, (1, 1), (0, 0), (1, 1), 1).values())
    here = extension.this_cpu()
    first = extension.choose(OPERATOR, here, "fp32", "fp32", values)
    assert extension.choose(OPERATOR, here, "fp32", "fp32", values) == first
    number = extension.variants.index(first)
    extension.enable(number, False)
    try:
        second = extension.choose(OPERATOR, here, "fp32", "fp32", values)
        with extension.only(number):
            assert extension.choose(OPERATOR, here, "fp32", "fp32", values) == first
        assert extension.choose(OPERATOR, here, "fp32", "fp32", values) == second
    finally:
        extension.enable(number, True)
    assert second != first
    assert extension.choose(OPERATOR, here, "fp32", "fp32", values) == first


def test_a_call_that_writes_nothing_computes_no_launch(package: ModuleType) -> None:
    # Launches divide by sizes; where one is 0 none may be looked at, of machine code or of PTX.
    op = getattr(package, OPERATOR)
    assert op(torch.randn(0, 8, 32, 32), torch.randn(6, 8, 3, 3), torch.randn(6)).shape == (0, 6, 30, 30)
    extension = package.runtime.package.STATE.extension
    machine_of = package.runtime.extension.Machine
    names = Signature(catalogue().operator(OPERATOR)).value_names
    draw = random.Random(1)
    for level, driver in ((90, 13000), (100, 13000), (86, 13000)):
        machine = machine_of("cuda", level, GPU, driver, 232_448, 132)
        for _ in range(200):
            call = _call(draw)
            call |= dict.fromkeys(draw.sample(["N", "H_out", "W_out"], 2), 0)
            extension.choose(OPERATOR, machine, "fp32", "fp32", [call[n] for n in names])
