# SPDX-License-Identifier: Apache-2.0
"""An operator of a user's own, by the command line alone: tuned, frozen, carried and timed from a folder
outside of the repository, and one line for whatever is wrong with it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any

import pytest
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.compile import Cache, compile_source
from coldforge.codegen.errors import InputError
from coldforge.codegen.problem import make_problem
from coldforge.codegen.render import render
from coldforge.codegen.settings import load_settings
from coldforge.codegen.target import cpu_target, cuda_target
from coldforge.tuner.client import WorkerClient
from coldforge.tuner.outcome import TrialOutcome
from coldforge.tuner.request import TrialRequest, trial_request
from own_family import FILES, NAME, replace, write_family

pytestmark = pytest.mark.build

USE = """
import sys, warnings
import torch
warnings.simplefilter("error")
from own_kernels import row_norm
assert not [n for n in sys.modules if n.split(".")[0] == "coldforge"], "the package needs coldforge"
import coldforge.generated
assert not [n for n in sys.modules if n.startswith(("coldforge.tuner", "coldforge.codegen"))]
weight = torch.randn(96)
for rows in (1, 3, 64, 1000):
    x = torch.randn(rows, 96)
    want = torch.nn.functional.rms_norm(x.double(), (96,), weight.double(), 1e-6)
    assert float((row_norm(x, weight) - want).norm() / want.norm()) < 1e-6, rows
    assert torch.equal(torch.ops.own_kernels.row_norm(x, weight), row_norm(x, weight))
try:
    row_norm(torch.randn(2, 95), weight)
except ValueError as error:
    print(error)
"""


class User:
    """A folder with a home of its own, and the command line in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.home = folder / "home"

    def call(self, *arguments: str, code: int = 0) -> Any:
        """Runs a command with --json: its document, or the last line on stderr when there is none."""
        env = {**os.environ, "COLDFORGE_HOME": str(self.home)}
        command = [sys.executable, "-c", "from coldforge.tuner.cli import main; main()", *arguments, "--json"]
        done = subprocess.run(
            command, cwd=self.folder, env=env, capture_output=True, text=True, check=False, timeout=280
        )
        assert done.returncode == code, done.stderr[-3000:] + done.stdout[-2000:]
        assert "Traceback" not in done.stderr
        if done.stdout:
            return json.loads(done.stdout)
        line = done.stderr.splitlines()[-1]
        assert line.startswith("coldforge: ")
        return line

    def tune(self, *arguments: str, code: int = 0) -> Any:
        return self.call("tune", NAME, "--target", "cpu", *arguments, code=code)


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> User:
    """One whose operator is tuned, and frozen into ``packages/own_kernels``."""
    user = User(tmp_path_factory.mktemp("user"))
    write_family(user.folder / "work")
    tuned = user.tune("--templates", f"work/{NAME}", "--trials", "3")
    assert tuned["status"] == "ok"
    assert tuned["outcomes"] == {"ok": 3}
    frozen = user.call("freeze", NAME, "--package", "own_kernels", "--out", "packages")
    assert frozen["operators"] == [NAME]
    assert frozen["build"]["status"] == "ok"
    return user


def _paths_in(root: Path, texts: dict[str, bytes]) -> list[str]:
    return [name for name, data in texts.items() if str(root).encode() in data]


def test_the_package_stands_alone_beside_the_repositorys(user: User) -> None:
    env = {**os.environ, "PYTHONPATH": str(user.folder / "packages")}
    done = subprocess.run(
        [sys.executable, "-c", USE], cwd="/", env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "weight has shape [96]; expected [columns] = [95]" in done.stdout


def test_no_path_of_this_machine_is_frozen(user: User) -> None:
    package = user.folder / "packages" / "own_kernels"
    written = {str(p): p.read_bytes() for p in package.rglob("*") if p.is_file() and "_build" not in p.parts}
    assert not _paths_in(user.folder, written)
    copy = (package / "reference" / f"{NAME}.py").read_text()
    note = f"# Copied by `coldforge freeze` from {NAME}/reference.py; do not edit.\n"
    assert copy == note + FILES["reference.py"], "a user's file gets no licence of ours"
    manifest = json.loads((package / "manifest.json").read_text())
    assert [entry["operator"] for entry in manifest["entries"]] == [NAME]


def test_other_commands_find_the_folder_again(user: User) -> None:
    shown = user.call("show", NAME)
    assert shown["operator"] == NAME
    assert NAME in user.call("render", NAME, "--target", "cpu")["source"]
    listed = user.call("list", "--templates", "work")["operators"]
    (own,) = [row for row in listed if row["name"] == NAME]
    assert own["targets"]["cpu"]["feasible_configs"] == 4
    again = user.tune("--trials", "3")
    assert again["study"] == shown["study"]
    rows = user.call("bench", NAME, "--package", "own_kernels", "--out", "packages", "--target", "cpu")
    assert rows["status"] == "ok"
    assert rows["speedup"]["eager"] > 0


def test_generated_is_no_place_for_it(user: User) -> None:
    said = user.call("freeze", NAME, code=2)
    assert f"declared in {user.folder / 'work' / NAME}" in said
    assert "--package NAME --out DIR" in said


def test_a_target_without_a_template(user: User) -> None:
    assert "row_norm has no template for cuda; give --target cpu" in user.call("render", NAME, code=2)


def test_a_bundle_says_what_it_lacks(user: User, tmp_path: Path) -> None:
    bundle = user.folder / "winners.zip"
    user.call("freeze", NAME, "--bundle", str(bundle))
    with zipfile.ZipFile(bundle) as archive:
        assert not _paths_in(user.folder, {name: archive.read(name) for name in archive.namelist()})
    other = User(tmp_path / "other")
    carry = (
        "freeze",
        NAME,
        "--from",
        str(bundle),
        "--package",
        "own_kernels",
        "--out",
        "packages",
        "--no-build",
    )
    assert "row_norm is not declared here: say --templates DIR" in other.call(*carry, code=2)
    there = write_family(other.folder)
    assert other.call(*carry, "--templates", str(there))["operators"] == [NAME]
    replace(there / "reference.py", "eps=1e-6", "eps=1e-5")
    assert "another declaration of row_norm" in other.call(*carry, "--templates", str(there), code=2)


def test_a_folder_that_moved(tmp_path: Path, user: User) -> None:
    other = User(tmp_path / "mover")
    shutil.copytree(user.home, other.home)
    place = write_family(other.folder / "here")
    other.tune("--templates", str(place), "--trials", "3")
    freeze = ("freeze", NAME, "--package", "own_kernels", "--out", "packages", "--no-build")
    place.parent.rename(other.folder / "there")
    assert f"{NAME} was tuned from {place}, which is gone" in other.call(*freeze, code=2)
    everything = other.call(*(a for a in freeze if a != NAME))
    assert "which is gone" in everything["left_out"][NAME]
    found = other.call(*freeze, "--templates", str(other.folder / "there"))
    assert set(found["operators"]) == {*everything["operators"], NAME}


def test_a_reference_that_ends_the_worker(tmp_path: Path) -> None:
    user = User(tmp_path)
    place = write_family(tmp_path)
    replace(place / "reference.py", "    return", "    import os\n    os._exit(3)\n    return")
    assert "worker" in user.tune("--templates", str(place), "--trials", "1", code=1)


def test_a_reference_that_fails_is_one_line(tmp_path: Path) -> None:
    user = User(tmp_path)
    place = write_family(tmp_path)
    replace(place / "reference.py", "import torch\n", "import torch\nraise ValueError('not today')\n")
    said = user.tune("--templates", str(place), "--trials", "1", code=2)
    assert said == "coldforge: row_norm/reference.py:2: ValueError: not today"


def _request(folder: Path) -> TrialRequest:
    declared, target = catalogue(folder), cpu_target()
    (operator,) = (o for o in declared.operators.values() if not declared.is_builtin(o))
    space, problem = declared.space(operator, target), make_problem(operator, "small")
    source = render(space, problem, space.default, target)
    artifact = compile_source(source, target, Cache(folder.parent / "cache"))
    return trial_request(space, problem, space.default, artifact, roots=(str(folder),))


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerClient]:
    settings = replaced(load_settings(), home=tmp_path_factory.mktemp("home"))
    with WorkerClient(cpu_target(), settings) as client:
        yield client


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("import torch\n", "import torch\nimport no_such_module\n", ":2: ModuleNotFoundError: No module"),
        ("import torch\n", "import torch\nraise SystemExit(3)\n", "row_norm/reference.py:2: SystemExit: 3"),
        (
            "    return",
            "    x = x + torch.ones(7)\n    return",
            ":5: row_norm failed: RuntimeError: The size",
        ),
        ("    return", "    raise SystemExit\n    return", ":5: row_norm failed: SystemExit"),
        ("eps=1e-6)", "eps=1e-6)[0]", "gave a tensor of shape [96]; the declared output y is ["),
        ("    return", "    return 3\n    return", "gave int, which is no tensor"),
        ("eps=1e-6)", "eps=1e-6).float()", "gave torch.float32 for inputs of torch.float64"),
    ],
)
def test_the_worker_outlives_a_reference(
    tmp_path: Path, worker: WorkerClient, old: str, new: str, expected: str
) -> None:
    place = write_family(tmp_path)
    replace(place / "reference.py", old, new)
    with pytest.raises(InputError) as caught:
        worker.run(_request(place))
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert worker.starts == 1


def test_the_worker_refuses_another_declaration(tmp_path: Path, worker: WorkerClient) -> None:
    request = _request(write_family(tmp_path))
    changed = replaced(request, operator_digest="0" * 64)
    with pytest.raises(InputError, match="declaration of row_norm was changed while it was tuned"):
        worker.run(changed)
    assert worker.run(request).ok


# name: tensors, output, more of family.yaml, the reference's result, workload, units, body
UNUSUAL = {
    "one_axis": ("{a: [n], b: [n]}", "{c: [n]}", "", "a + b", "n: 5000", "ceil_div(n, 1024)",
                 "for (int64_t i = part * 1024; i < n && i < (part + 1) * 1024; ++i) c[i] = a[i] + b[i];"),
    "to_one_axis": ("{x: [rows, columns]}", "{y: [rows]}", "", "x.sum(1)", "rows: 100, columns: 300", "rows",
                    "y[part] = sum<LANES>(columns, [&](int i) { return x[part * columns + i]; });"),
    "to_one": ("{x: [n]}", "{y: [1]}", "", "x.sum()[None]", "n: 5000", "1",
               "y[part] = sum<LANES>(n, [&](int64_t i) { return x[i]; });"),
    "axes_of_one": ("{x: [tokens, 1], w: [1, wide]}", "{y: [tokens, wide, 1]}", "", "(x * w)[..., None]",
                    "tokens: 1, wide: 7", "tokens",
                    "for (int i = 0; i < wide; ++i) y[part * wide + i] = x[part] * w[i];"),
    "all_compiled_in": ("{x: [rows, 8]}", "{y: [rows, 8]}", "run_time: []", "2 * x + 1", "rows: 9", "rows",
                        "for (int i = 0; i < 8; ++i) y[part * 8 + i] = 2 * x[part * 8 + i] + 1;"),
    "three_axes": (
        "{x: [batch, heads, length]}", "{y: [batch, heads, length]}", "run_time: [batch, length]",
        "x.softmax(-1)", "batch: 3, heads: 4, length: 100", "batch * heads",
        "const float* in = x + part * length;\nfloat* out = y + part * length;\n"
        "const float top = largest<LANES>(length, [&](int i) { return in[i]; });\n"
        "const float all = sum<LANES>(length, [&](int i) { return out[i] = expf(in[i] - top); });\n"
        "for (int i = 0; i < length; ++i) out[i] /= all;",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNUSUAL)
def test_shapes_that_no_convolution_has(tmp_path: Path, worker: WorkerClient, name: str) -> None:
    tensors, output, more, result, workload, units, body = UNUSUAL[name]
    place = tmp_path / name
    place.mkdir()
    (place / "family.yaml").write_text(
        f"tensors: {tensors}\noutput: {output}\nreference: reference:{name}\n"
        f"workloads: {{small: {{{workload}}}}}\n{more}\n"
    )
    names = [word.partition(":")[0].strip("{ ") for word in tensors.split("], ")]
    (place / "reference.py").write_text(f"def {name}({', '.join(names)}):\n    return {result}\n")
    template = place / f"{name}.cpp.jinja"
    template.write_text(f'{{% call kernel.cpu_units("part") %}}\n{body}\n{{% endcall %}}\n')
    (place / "space.yaml").write_text(f'parameters: {{LANES: [4, 8]}}\nlaunch: {{units: "{units}"}}\n')
    outcome = worker.run(_request(place))
    assert outcome.ok, outcome.reason
    for data in ("a[", "x[", "in["):
        template.write_text(template.read_text().replace(data, f"1.001f * {data}"))
    assert worker.run(_request(place)).outcome is TrialOutcome.WRONG_RESULT


def test_a_template_that_does_not_compile_is_an_outcome(tmp_path: Path) -> None:
    user = User(tmp_path)
    place = write_family(tmp_path)
    replace(place / "mean.hpp", "sum / count", "sum / cuont")
    tuned = user.tune("--templates", str(place), "--trials", "2", code=1)
    assert tuned["outcomes"] == {"compile_error": 2}


def test_a_compile_error_names_the_line_of_the_template(tmp_path: Path) -> None:
    user = User(tmp_path)
    template = write_family(tmp_path) / "row_norm.cpp.jinja"
    replace(template, "1 / sqrtf(", "1 / sqrtff(")
    tuned = user.tune("--templates", str(template.parent), "--trials", "1", code=1)
    said = tuned["failures"]["compile_error"]["example"]
    assert re.search(r": row_norm\.cpp\.jinja:5 \(rendered line \d+\): error: .*sqrtff", said)


def test_a_wrong_kernel_is_never_a_winner(tmp_path: Path) -> None:
    user = User(tmp_path)
    place = write_family(tmp_path)
    replace(place / "mean.hpp", "sum / count", "sum / (count - 1)")
    tuned = user.tune("--templates", str(place), "--trials", "2", code=1)
    assert tuned["outcomes"] == {"wrong_result": 2}


def test_a_reference_that_cannot_travel(tmp_path: Path) -> None:
    user = User(tmp_path)
    place = write_family(tmp_path)
    replace(place / "reference.py", "import torch\n", "import numpy\nimport torch\n")
    assert user.tune("--templates", str(place), "--trials", "1")["status"] == "ok"
    said = user.call("freeze", NAME, "--package", "own_kernels", "--out", "packages", code=2)
    assert "row_norm/reference.py:1 imports 'numpy', and cannot be frozen" in said
    assert not (tmp_path / "packages").exists()


def test_an_older_declarations_winner_is_dropped(tmp_path: Path) -> None:
    user = User(tmp_path)
    place = write_family(tmp_path)
    user.tune("--templates", str(place), "--trials", "1")
    replace(place / "reference.py", "import torch", "import torch  # the same")
    freeze = ("freeze", NAME, "--package", "own_kernels", "--out", "packages", "--no-build")
    assert "tuned for another declaration of row_norm" in user.call(*freeze, code=2)
    user.tune("--templates", str(place), "--trials", "1", "--shape", "columns=32")
    report = user.call(*freeze)
    assert report["total_entries"] == 1
    assert len(report["dropped"]) == 1


CUDA_TEMPLATE = """\
{% call kernel.cuda_kernel(config.THREADS) %}
__shared__ float parts[THREADS];
const float* in = x + blockIdx.x * columns;
float squares = 0;
for (int i = threadIdx.x; i < columns; i += THREADS) squares += in[i] * in[i];
parts[threadIdx.x] = squares;
for (int width = THREADS / 2; width > 0; width /= 2) {
  __syncthreads();
  if (threadIdx.x < width) parts[threadIdx.x] += parts[threadIdx.x + width];
}
__syncthreads();
const float scale = 1 / sqrtf(parts[0] / columns + 1e-6f);
for (int i = threadIdx.x; i < columns; i += THREADS) y[blockIdx.x * columns + i] = in[i] * scale * weight[i];
{% endcall %}
"""
CUDA_SPACE = """\
parameters: {THREADS: [64, 128, 256]}
file: row_norm.cu.jinja
launch: {grid: rows, block: THREADS}
"""


def test_a_cuda_template_compiles(tmp_path: Path) -> None:
    place = write_family(tmp_path)
    (place / "row_norm.cu.jinja").write_text(CUDA_TEMPLATE)
    (place / "space.cuda.yaml").write_text(CUDA_SPACE)
    replace(place / "space.yaml", "launch:", "target: cpu\nlaunch:")
    declared, target = catalogue(place), cuda_target("sm_90")
    operator = declared.operator(NAME)
    space, problem = declared.space(operator, target), make_problem(operator, "small")
    assert [c["THREADS"] for c in space.feasible(problem, target)] == [64, 128, 256]
    source = render(space, problem, space.default, target)
    artifact = compile_source(source, target, Cache(tmp_path / "cache"))
    assert artifact.resources.shared_bytes == 4 * 64
    launch = space.launch(problem, space.default, target)
    assert (launch.grid, launch.block, launch.shared_bytes) == (64, 64, 0)
