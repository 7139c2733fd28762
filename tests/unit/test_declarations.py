# SPDX-License-Identifier: Apache-2.0
"""Malformed YAML of every kind gives one DeclarationError that names the file and the part."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from coldforge.codegen.catalogue import BUILTIN_ROOT, Catalogue
from coldforge.codegen.declare import load_mapping
from coldforge.codegen.errors import DeclarationError
from coldforge.codegen.module_arguments import MODULE_NAMES
from coldforge.codegen.problem import make_problem
from coldforge.codegen.render import render
from coldforge.codegen.target import cuda_target
from coldforge.generated.runtime.module import FrozenModule
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A copy of the built-in declarations that a test may damage."""
    shutil.copytree(BUILTIN_ROOT, tmp_path / "templates", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "templates"


def _damage(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("family: conv2d", "family: conv9d", "unknown family 'conv9d'"),
        ("  - div: divisor", "  - divide: divisor", "unknown operation 'divide'"),
        ("  - div: divisor", "  - div: nothing", "names 'nothing'"),
        ("  - div: divisor", "  - div: {by: divisor}", "no parameter 'by'"),
        ("  - div: divisor", "  - clamp: divisor", "name them"),
        ("  - div: divisor", "  - [div, 2]", "expected an operation"),
        ("  - div: divisor", "  - sum: {over: channels}", "the templates of this family reduce nothing"),
        ("divisor: 2.0", "divisor: two", "expected a number"),
        ("divisor: 2.0", "divisor: .inf", "expected a number"),
        ("divisor: 2.0", "x: 2.0, divisor: 2.0", "already taken"),
        ("summary:", "sumary:", "missing key 'summary'"),
        ("module:", "extra: 1\nmodule:", "unknown key 'extra'"),
        ("module:", "family: conv2d\nmodule:", "given twice"),
        ("small: {", "small: {Q: 3, ", "unknown key 'Q'"),
        ("epilogue:", "epilogue: [", "malformed YAML"),
        ("operator: conv2d_divide_leaky_relu", "operator: other", "the file name must be other.yaml"),
        ("family: conv2d", "family: [conv2d]", "unknown family"),
        ("module:", "channel_vectors: 3\nmodule:", "expected a list"),
        ("module:", "channel_vectors: pq\nmodule:", "expected a list"),
        ("divisor: 2.0", "v: 1.0, divisor: 2.0", "'v' is already taken"),
        ("divisor: 2.0", "class: 1.0, divisor: 2.0", "'class' is already taken"),
        ("divisor: 2.0", "stride_h: 1.0, divisor: 2.0", "'stride_h' is already taken"),
        ("divisor: 2.0", "H_out: 1.0, divisor: 2.0", "'H_out' is already taken"),
    ],
)
def test_operator(root: Path, old: str, new: str, expected: str) -> None:
    _damage(root / "operators" / "conv2d_divide_leaky_relu.yaml", old, new)
    with pytest.raises(DeclarationError) as caught:
        Catalogue((root,)).operators  # noqa: B018 (reading the property loads the files)
    assert expected in str(caught.value)
    assert "conv2d_divide_leaky_relu.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "[C_out, 1, 1]",
            "[C_put, 1, 1]",
            "shape reads 'C_put'; it may read what a module's constructor knows",
        ),
        ("[C_out, 1, 1]", "[C_out, N]", "shape reads 'N'"),
        ("[C_out, 1, 1]", "[C_out, H_out]", "shape reads 'H_out'"),
        ("[C_out, 1, 1]", "[]", "expected a list that is not empty"),
        ("optional: true", "optional: 1", "must be true or false"),
        ("optional: true", "optionel: true", "unknown key 'optionel'"),
        ("bias: {shape: [C_out, 1, 1], optional: true}", "bias: 3", "expected a mapping"),
        ("  bias: {", "  conv_bias: {", "'conv_bias' is already taken"),
        ("over: channels", "over: rows", "it must be channels or pixels"),
        ("over: channels, ", "", "missing key 'over'"),
        ("keepdim: true", "keepdim: 1", "keepdim must be true or false"),
        ("- sum: {over: pixels}", "- sum: {over: channels}", "the channels are already reduced"),
        ("- mul: scale", "- mul: bias", "reads a channel vector, but no channels are left"),
        ("- logsumexp: {", "- logsumexpp: {", "unknown operation 'logsumexpp'"),
        ("scale: 10.0", "bias_shape: 1.0, scale: 10.0", "would have two arguments 'bias_shape'"),
        ("scale: 10.0", "in_channels: 1.0, scale: 10.0", "would have two arguments 'in_channels'"),
        ("scale: 10.0", "device: 1.0, scale: 10.0", "would have two arguments 'device'"),
        ("scale: 10.0", "half: 1.0, scale: 10.0", "'half' would hide a part of the module"),
        ("scale: 10.0", "linear: 1.0, scale: 10.0", "'linear' is already taken"),
        ("scale: 10.0", "has_bias: 10.0, scale: 10.0", "'has_bias' is already taken"),
        ("module: ConvTranspose2dMeanLogSumExp", "module: Tensor", "'Tensor' is already taken"),
    ],
)
def test_operator_that_reduces(root: Path, old: str, new: str, expected: str) -> None:
    _damage(root / "operators" / "conv_transpose2d_mean_logsumexp.yaml", old, new)
    with pytest.raises(DeclarationError) as caught:
        Catalogue((root,)).operators  # noqa: B018
    assert expected in str(caught.value)
    assert "conv_transpose2d_mean_logsumexp.yaml" in str(caught.value)


def test_names_that_only_a_module_takes(root: Path) -> None:
    path = root / "operators" / "conv_transpose2d_mean_logsumexp.yaml"
    _damage(path, "module: ConvTranspose2dMeanLogSumExp\n", "")
    _damage(path, "scale: 10.0", "half: 1.0, device: 1.0, scale: 10.0")
    operator = Catalogue((root,)).operator("conv_transpose2d_mean_logsumexp")
    assert list(operator.scalars) == ["half", "device", "scale"]


def test_every_name_of_pytorchs_modules_is_known() -> None:
    names = {name for name in dir(torch.nn.Module()) if not name.startswith("_")}
    assert names - MODULE_NAMES == set()
    own = {name for name in dir(FrozenModule()) if not name.startswith("_")}
    assert own - MODULE_NAMES == set()


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("run_time: [N, H, W]", "run_time: [N, H, Q]", "run_time names 'Q'"),
        ("flops: 2 * N", "flops: 2 * QQ", "unknown name 'QQ'"),
        ("flops: 2 * N", "flops: __import__('os') * N", "not part of the expression language"),
        ("reference: conv2d", "reference: conv9d", "no function 'conv9d'"),
        ("sizes: [N, C_in,", "sizes: [N, N,", "stands twice"),
        ("default: 1, min: 1}\n  padding", "default: 0, min: 1}\n  padding", "not a whole number from 1"),
        ("groups={groups} does", "groups={gruops} does", "unknown name 'gruops'"),
        ("kernel_size: [R, S]", "kernel_size: [R, Q]", "names 'Q'"),
        ("channel_dim: 1", "channel_dim: 4", "no dimension of the output"),
        (
            "bias: {shape: [C_out], optional: true}",
            "bias: {shape: [C_out], optional: maybe}",
            "true or false",
        ),
    ],
)
def test_family(root: Path, old: str, new: str, expected: str) -> None:
    _damage(root / "conv2d" / "family.yaml", old, new)
    with pytest.raises(DeclarationError, match=r"family\.yaml") as caught:
        Catalogue((root,)).families  # noqa: B018
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("epilogue", "5", "expected a list"),
        ("epilogue", "relu", "expected a list"),
        ("workloads", "{}", "at least one"),
    ],
)
def test_operator_part(root: Path, key: str, value: str, expected: str) -> None:
    parts = {"epilogue": "[relu]", "workloads": "{seed: {N: 1}}", key: value}
    text = "operator: one\nfamily: conv2d\nsummary: one\n"
    (root / "operators" / "one.yaml").write_text(text + "".join(f"{k}: {v}\n" for k, v in parts.items()))
    with pytest.raises(DeclarationError, match=r"one\.yaml") as caught:
        Catalogue((root,)).operators  # noqa: B018
    assert expected in str(caught.value)


def test_the_order_of_scalars_is_part_of_an_operators_digest(root: Path) -> None:
    # It is the order of a kernel's arguments: an entry of another order must not be dispatched.
    before = Catalogue((root,)).operator("conv2d_divide_leaky_relu").digest
    path = root / "operators" / "conv2d_divide_leaky_relu.yaml"
    _damage(path, "divisor: 2.0, negative_slope: 0.01", "negative_slope: 0.01, divisor: 2.0")
    assert Catalogue((root,)).operator("conv2d_divide_leaky_relu").digest != before


SPACE = """\
template: direct
target: cuda
archs: [sm_90]
file: direct.cu.jinja
parameters:
  TILE_X: {values: [16, 32], help: output columns of a block}
  WEIGHTS: {values: [shared, direct], help: where weights are read}
derived: {THREADS: TILE_X * 8}
constraints:
  - {require: THREADS <= 128 or WEIGHTS == 'shared', reason: "{THREADS} threads with {WEIGHTS} weights"}
default: {TILE_X: 16, WEIGHTS: shared}
launch: {grid: "N * ceil_div(W_out, TILE_X)", block: THREADS, shared_bytes: 0}
"""


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("target: cuda", "target: tpu", "must be cuda or cpu"),
        ("target: cuda", "target: [cuda]", "must be cuda or cpu"),
        ("values: [16, 32]", "values: []", "list that is not empty"),
        ("values: [16, 32]", "values: [16, 16]", "stands twice"),
        ("values: [16, 32]", "values: [16, 1.5]", "neither a whole number"),
        ("values: [16, 32]", "values: [16, true]", "neither a whole number"),
        ("values: [shared, direct]", "values: [shared, 'a b']", "is not a name"),
        ("default: {TILE_X: 16, ", "default: {", "missing key 'TILE_X'"),
        ("default: {TILE_X: 16", "default: {TILE_X: 17", "is none of"),
        ("launch: {", "fallbacks: [{TILE_X: 17}]\nlaunch: {", "is none of"),
        ("launch: {", "fallbacks: [{TILE_Y: 1}]\nlaunch: {", "TILE_Y"),
        ("launch: {", "fallbacks: {TILE_X: 32}\nlaunch: {", "expected a list"),
        ("file: direct.cu.jinja", "file: ../family.yaml", "does not stand beside"),
        ("block: THREADS", "blocks: THREADS", "missing key 'block'"),
        ("derived: {THREADS: TILE_X * 8}", "derived: {THREADS: [1]}", "expected an expression"),
        ("help: output columns of a block", "hint: x", "missing key 'help'"),
    ],
)
def test_space(root: Path, old: str, new: str, expected: str) -> None:
    path = root / "conv2d" / "space.direct.cuda.yaml"
    path.write_text(SPACE)
    (root / "conv2d" / "direct.cu.jinja").touch()
    _damage(path, old, new)
    catalogue = Catalogue((root,))
    with pytest.raises(DeclarationError, match=r"space\.direct\.cuda\.yaml") as caught:
        catalogue.spaces(catalogue.operator("conv2d_mish"))
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "- a\n- b",
        "a: &x [1]\nb: *x",
        "!!python/object/apply:os.system ['true']",
        "a: 1\na: 2",
        "1: 2",
        "",
        "\x00",
        "{",
    ],
)
def test_not_a_plain_mapping(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(DeclarationError):
        load_mapping(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(st.binary(max_size=200))
def test_any_bytes_load_or_are_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(data)
    message = ""
    try:
        assert isinstance(load_mapping(path), dict)
    except DeclarationError as error:
        message = str(error)
    assert "\n" not in message


@pytest.mark.parametrize(
    "text", ["{{ 1 / 0 }}", "{{ config.TILE_X + 'a' }}", "{% if %}", "{{ nope }}", "\udcff"]
)
def test_a_template_that_fails_is_one_error(root: Path, text: str) -> None:
    with (root / "conv2d" / "direct.cu.jinja").open("a", errors="surrogateescape") as stream:
        stream.write(text)
    declared = Catalogue((root,))
    problem = make_problem(declared.operator("conv2d_mish"), "seed")
    target = cuda_target("sm_90")
    space = declared.space(problem.operator, target)
    with pytest.raises(DeclarationError, match=r"^conv2d/direct\.cu\.jinja"):
        render(space, problem, space.default, target)


@pytest.mark.parametrize("reason", ["{QQ} threads", "{} threads", "{THREADS.real} threads", "{ threads"])
def test_a_reason_that_is_no_plain_text(root: Path, reason: str) -> None:
    path = root / "conv2d" / "space.direct.cuda.yaml"
    path.write_text(SPACE.replace("{THREADS} threads", reason).replace("THREADS <= 128", "THREADS < 0"))
    declared = Catalogue((root,))
    problem = make_problem(declared.operator("conv2d_mish"), "seed")
    space = declared.space(problem.operator, cuda_target("sm_90"))
    config = space.config({"WEIGHTS": "direct"})
    if reason == "{QQ} threads":
        with pytest.raises(DeclarationError, match="unknown name 'QQ'"):
            space.check(problem, config, cuda_target("sm_90"))
    else:
        assert reason in str(space.check(problem, config, cuda_target("sm_90")))
