# SPDX-License-Identifier: Apache-2.0
"""Launch expressions in C++ give what the tuner computed, at any run-time sizes."""

from __future__ import annotations

import dataclasses
import random
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.errors import DeclarationError
from coldforge.codegen.expr import evaluate_int, parse
from coldforge.codegen.freeze import GENERATED, Winner
from coldforge.codegen.freeze.fold import fold_to_cpp
from coldforge.codegen.freeze.signature import Signature
from coldforge.codegen.freeze.table import launch_code, render_table
from coldforge.codegen.freeze.units import all_units
from coldforge.codegen.problem import Problem, make_problem
from coldforge.codegen.render import render
from coldforge.codegen.space import Space
from coldforge.codegen.target import Target, cpu_target_for, cuda_target

WinnerFactory = Callable[..., Winner]
KNOWN = {"TILE": 8, "MODE": "ring", "STEP": -3, "FLAG": True}
LATE = ("N", "H", "W")
TEXTS = (
    "N * ceil_div(H, TILE) * ceil_div(W, TILE)",
    "min(N * 4, H, W // 2) if MODE == 'ring' else N",
    "N if MODE in ('plain', 'async') else H",
    "max(1, N // STEP, W % STEP, abs(STEP))",
    "round_up(H, TILE) - -STEP",
    "W if 3 < H <= 40 < N + 30 else TILE",
    "(N > 2) + (H not in (1, 2, 3)) * FLAG",
    "N if not (H > W or N == 2) and FLAG else W - H",
    "(H - W) // TILE + (H - W) % TILE",
    "TILE * 4 + STEP",
)


@pytest.mark.build
def test_folded_expressions(tmp_path: Path) -> None:
    lines = [f'  printf("%lld\\n", static_cast<long long>({fold_to_cpp(t, KNOWN, LATE)}));' for t in TEXTS]
    body = "\n".join(lines)
    (tmp_path / "fold.cpp").write_text(
        '#include <cstdio>\n#include <cstdlib>\n#include "expressions.h"\n'
        "int main(int, char** a) {\n"
        "  const int64_t N = atoll(a[1]), H = atoll(a[2]), W = atoll(a[3]);\n"
        f"  (void)N; (void)H; (void)W;\n{body}\n}}\n"
    )
    native = GENERATED / "runtime" / "native"
    subprocess.run(["g++", "-std=c++17", f"-I{native}", "fold.cpp", "-o", "fold"], cwd=tmp_path, check=True)
    draw = random.Random(1)
    for _ in range(40):
        sizes = {name: draw.choice([1, 2, 3, 7, 8, 9, 40, 41, 1000, 2**20]) for name in LATE}
        run = subprocess.run(
            ["./fold", *map(str, sizes.values())], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        wanted = [int(parse(text).evaluate({**KNOWN, **sizes})) for text in TEXTS]
        assert [int(line) for line in run.stdout.split()] == wanted, sizes


def test_what_cannot_be_folded() -> None:
    with pytest.raises(DeclarationError, match="unknown name 'GONE'"):
        fold_to_cpp("N * GONE", KNOWN, LATE)
    with pytest.raises(DeclarationError, match="expected a whole number"):
        fold_to_cpp("MODE", KNOWN, LATE)
    with pytest.raises(DeclarationError, match="division"):
        fold_to_cpp("N * (TILE // (TILE - 8))", KNOWN, LATE)


def test_launch_reads_the_machine_at_hand(fake_cuda_winner: WinnerFactory) -> None:
    signature = Signature(catalogue().operator("conv2d_divide_leaky_relu"))
    text = render_table([signature], [fake_cuda_winner()], "pkg")
    # What depends on run-time sizes is computed at the call, with the GPU's own number of multiprocessors.
    assert "const int64_t sm_count = _machine.sm_count;" in text
    assert "const int64_t TILES = (N * coldforge::ceil_div_int(H_out, INT64_C(8)));" in text
    assert "_launch.grid = coldforge::min_int(TILES, (sm_count * INT64_C(2)));" in text
    assert "_launch.block = INT64_C(256);" in text
    assert "_launch.shared_bytes = INT64_C(320);" in text
    assert "_launch.workspace_bytes = (N * INT64_C(4));" in text
    assert 'coldforge::Kind::cuda, "NVIDIA H200", 90, coldforge::DType::fp32' in text
    assert ".incbin" in text


def test_a_second_kernel_is_named_only_where_a_launch_asks_for_it(
    naive_winner: WinnerFactory, fake_cuda_winner: WinnerFactory
) -> None:
    signature = Signature(catalogue().operator("conv2d_divide_leaky_relu"))
    plain = naive_winner({"C_out": 5}, arch="x86-64-v3")
    assert "_finish" not in render_table([signature], [plain, fake_cuda_winner()], "pkg")
    second = {
        "finish_units": "N * GRAIN",
        "finish_grain": "GRAIN",
        "zeroed_bytes": "4",
        "workspace_bytes": "N * 8",
    }
    staged = naive_winner(arch="x86-64-v3", launch={**plain.launch, **second})
    text = render_table([signature], [staged, plain], "pkg")
    assert text.count("weak") == 2  # a declaration for each of the two levels
    for level in ("v2", "v3"):
        unit = next(u for u in all_units([staged]) if u.arch.endswith(level))
        arguments = "(int64_t begin, int64_t end, void* words);"
        assert f'__attribute__((visibility("hidden"), weak)) void {unit.symbol}_finish{arguments}' in text
        row = f"COLDFORGE_ON_X86_64({unit.symbol}), nullptr, COLDFORGE_ON_X86_64({unit.symbol}_finish)}}"
        assert row in text
    assert "_launch.finish_units = (N * INT64_C(2));" in text
    assert "_launch.finish_grain = INT64_C(2);" in text
    assert "_launch.zeroed_bytes = INT64_C(4);" in text
    cuda = {"finish_grid": "ceil_div(N, TILE)", "finish_block": "64", "finish_shared_bytes": "N"}
    base = fake_cuda_winner()
    text = render_table([signature], [fake_cuda_winner(launch={**base.launch, **cuda})], "pkg")
    assert "_launch.finish_grid = coldforge::ceil_div_int(N, INT64_C(8));" in text
    assert "_launch.finish_shared_bytes = N;" in text
    assert "_finish(" not in text


def test_schema_follows_the_declaration() -> None:
    signature = Signature(catalogue().operator("conv2d_divide_leaky_relu"))
    assert signature.schema == (
        "conv2d_divide_leaky_relu(Tensor x, Tensor weight, Tensor? bias, float divisor, "
        "float negative_slope, int[2] stride, int[2] padding, int[2] dilation, int groups=1, "
        "str? precision=None) -> Tensor"
    )
    assert signature.module_parameters == {
        "in_channels": ("C_in",),
        "out_channels": ("C_out",),
        "kernel_size": ("R", "S"),
    }


def _launch_program(winners: Sequence[Winner], shapes: Sequence[Mapping[str, int]]) -> str:
    """A C++ program that prints each winner's launch geometry at each shape, fields sorted by name."""
    signature = Signature(catalogue().operator(winners[0].operator))
    values = "\n".join(f"  {{{', '.join(str(shape[n]) for n in LATE_VALUES)}}}," for shape in shapes)
    functions = []
    for number, winner in enumerate(winners):
        locals_, launch = launch_code(signature, winner)
        lines = [f"  const int64_t {local['name']} = {local['cpp']};" for local in locals_]
        lines += [f'  printf("%lld ", static_cast<long long>({cpp}));' for _, cpp in launch]
        functions.append(f"void launch{number}(const int64_t* _v) {{\n" + "\n".join(lines) + "\n}")
    names = ", ".join(LATE_VALUES)
    calls = "".join(f'    launch{number}(v); puts("");\n' for number in range(len(winners)))
    return (
        '#include <cstdio>\n#include "entry.h"\n#include "expressions.h"\n'
        f"namespace Value {{ enum {{ {names} }}; }}\nconst coldforge::Machine _machine{{132, 2}};\n"
        + "\n".join(functions)
        + f"\nconst int64_t kShapes[][{len(LATE_VALUES)}] = {{\n{values}\n}};\n"
        + f"int main() {{\n  for (const auto& v : kShapes) {{\n{calls}  }}\n}}\n"
    )


LATE_VALUES = ("N", "H", "W", "H_out", "W_out")


def _seed(space: Space, target: Target) -> Problem:
    """The workload `seed`, without padding, of the first operator of the space's family where its default is
    legal, else of the first operator."""
    operators = [o for o in catalogue().operators.values() if o.family.name == space.family]
    problems = [make_problem(operator, "seed", {"padding": 0}) for operator in operators]
    return next((p for p in problems if space.check(p, space.default, target) is None), problems[0])


@pytest.mark.build
@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_real_spaces(tmp_path: Path, naive_winner: WinnerFactory, kind: str) -> None:
    operator = catalogue().operator("conv2d_divide_leaky_relu")
    target = cuda_target("sm_90") if kind == "cuda" else cpu_target_for("x86-64-v3")
    here = {"sm_count": 132} if kind == "cuda" else {"threads": 2}
    target = Target(target.kind, target.arch, "test", {**target.attributes, **here})
    draw = random.Random(3)
    winners, spaces = [], []
    for space in catalogue().spaces(operator, kind):
        problem = _seed(space, target)
        for config in draw.sample(space.feasible(problem, target), 12):
            spaces.append((space, config, problem))
            winner = naive_winner(
                workload="seed",
                shape={"C_out": 64},
                target=target.to_dict(),
                config=dict(config),
                launch={n: e.text for n, e in space.launch_exprs.items()},
                derived={n: e.text for n, e in space.derived.items()},
            )
            winners.append(dataclasses.replace(winner, specialisation=dict(problem.specialisation)))
    sizes = [{"N": n, "H": h, "W": w} for n, h, w in ((1, 3, 3), (5, 61, 67), (128, 128, 128), (3, 9, 500))]
    problems = [spaces[0][2].with_dims(**each) for each in sizes]
    shapes = [{n: int(p.values[n]) for n in LATE_VALUES} for p in problems]
    (tmp_path / "launch.cpp").write_text(_launch_program(winners, shapes))
    native = GENERATED / "runtime" / "native"
    subprocess.run(
        ["g++", "-std=c++17", f"-I{native}", "launch.cpp", "-o", "launch"], cwd=tmp_path, check=True
    )
    run = subprocess.run(["./launch"], cwd=tmp_path, capture_output=True, text=True, check=True)
    printed = [[int(n) for n in line.split()] for line in run.stdout.splitlines()]
    wanted = []
    for each in sizes:
        for space, config, problem in spaces:
            sized = problem.with_dims(**each)
            launch = space.launch(sized, config, target).to_dict()
            # What a kernel has to do at that size is no part of a launch, but stands beside it.
            work = evaluate_int(space.launch_exprs["work"].text, space.environment(sized, config, target))
            wanted.append([{**launch, "work": work}[name] for name in sorted(space.launch_exprs)])
    assert printed == wanted


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_a_source_does_not_depend_on_run_time_sizes(kind: str) -> None:
    # Else it would be wrong at every size but the tuned one.
    operator = catalogue().operator("conv2d_divide_leaky_relu")
    target = cuda_target("sm_90") if kind == "cuda" else cpu_target_for("x86-64-v3")
    for space in catalogue().spaces(operator, kind):
        problem = _seed(space, target)
        for config in random.Random(5).sample(space.feasible(problem, target), 10):
            texts = {
                render(space, p, config, target).text for p in (problem, problem.with_dims(N=3, H=9, W=500))
            }
            assert len(texts) == 1, config.key
