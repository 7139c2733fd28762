# SPDX-License-Identifier: Apache-2.0
"""Gradients of frozen operators, and what else PyTorch does with an op: transforms, autocast, export."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from coldforge.codegen.freeze import Winner
from mean_winners import mean_winner
from torch.utils._python_dispatch import TorchDispatchMode

pytestmark = pytest.mark.build
Tensors = list[torch.Tensor]

CONV = "conv2d_divide_leaky_relu"
MEAN = "conv_transpose2d_mean_logsumexp"


@pytest.fixture(scope="module")
def package(
    tmp_path_factory: pytest.TempPathFactory,
    naive_winner: Callable[..., Winner],
    frozen_package: Callable[..., ModuleType],
) -> ModuleType:
    folder = tmp_path_factory.mktemp("gradients")
    return frozen_package(folder, "cf_gradients", [naive_winner(), mean_winner()])


def _tensors(name: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensors:
    """Small inputs which a frozen kernel of the package covers."""
    g = torch.Generator().manual_seed(seed)
    shapes = {
        CONV: [(2, 8, 5, 6), (6, 8, 3, 3), (6,)],
        MEAN: [(2, 4, 5, 6), (4, 6, 3, 3), (6,), (6, 1, 1)],
    }[name]
    return [(torch.randn(shape, generator=g) / 3).to(dtype) for shape in shapes]


def _plain(name: str) -> Callable[..., torch.Tensor]:
    """The operator as a user would write it."""

    def conv(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.leaky_relu(F.conv2d(x, weight, bias) / 2.0, 0.01)

    def mean(
        x: torch.Tensor, weight: torch.Tensor, conv_bias: torch.Tensor, bias: torch.Tensor
    ) -> torch.Tensor:
        v = F.conv_transpose2d(x, weight, conv_bias).mean((2, 3), keepdim=True) + bias
        return 10.0 * v.logsumexp(1, keepdim=True).sum((2, 3))

    return {CONV: conv, MEAN: mean}[name]


def _leaves(tensors: Tensors, needed: tuple[bool, ...] | None = None) -> Tensors:
    needed = needed or (True,) * len(tensors)
    return [t.clone().requires_grad_(n) for t, n in zip(tensors, needed, strict=True)]


def _arguments(name: str, tensors: Tensors) -> tuple[Any, ...]:
    if name == CONV:
        return (*tensors, 2.0, 0.01, [1, 1], [0, 0], [1, 1], 1, None)
    return (*tensors, 10.0, [1, 1], [0, 0], [0, 0], [1, 1], 1, None)


both = pytest.mark.parametrize("name", [CONV, MEAN])


@both
def test_a_gradient_for_each_tensor_that_needs_one(package: ModuleType, name: str) -> None:
    op, plain = getattr(package, name), _plain(name)
    count = len(_tensors(name))
    for pattern in range(1, 2**count):
        needed = tuple(bool(pattern >> i & 1) for i in range(count))
        ours, theirs = _leaves(_tensors(name), needed), _leaves(_tensors(name), needed)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            out = op(*ours)
            assert package.runtime.package.STATE.extension.last() is not None  # the frozen kernel ran
            weights = torch.linspace(-1, 2, out.numel()).view_as(out)
            (out * weights).sum().backward()
        (plain(*theirs) * weights).sum().backward()
        for own, other in zip(ours, theirs, strict=True):
            if other.grad is None:
                assert own.grad is None
            else:
                torch.testing.assert_close(own.grad, other.grad, rtol=2e-5, atol=2e-5)


@both
def test_gradcheck_and_its_second_order(package: ModuleType, name: str) -> None:
    op = getattr(package, name)
    x, *rest = _tensors(name, torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the reference computes in float64
        inputs = tuple(_leaves([x[:1, :, :4, :3].contiguous(), *rest]))
        assert torch.autograd.gradcheck(op, inputs, fast_mode=True)
        assert torch.autograd.gradgradcheck(op, inputs, fast_mode=True)


@both
def test_a_penalty_on_a_gradient(package: ModuleType, name: str) -> None:
    results = []
    for function in (getattr(package, name), _plain(name)):
        tensors = _leaves(_tensors(name))
        (first,) = torch.autograd.grad(function(*tensors).square().sum(), tensors[:1], create_graph=True)
        first.square().sum().backward()
        results.append([t.grad for t in tensors])
    for own, other in zip(*results, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-4)


@both
def test_opcheck_of_every_op(package: ModuleType, name: str) -> None:
    ops = torch.ops.cf_gradients
    arguments = _arguments(name, _tensors(name))
    cases = [
        (getattr(ops, name), arguments),
        (getattr(ops, f"{name}_autograd"), arguments),
        (getattr(ops, f"{name}_autograd"), (*_leaves(_tensors(name)), *arguments[len(_tensors(name)) :])),
        (getattr(ops, f"{name}_reference"), (*arguments, "a test asks for it")),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op, given in cases:
            assert set(torch.library.opcheck(op.default, given).values()) == {"SUCCESS"}


@both
def test_transforms_of_functions(package: ModuleType, name: str) -> None:
    op, plain = getattr(package, name), _plain(name)
    x, *rest = _tensors(name)
    batch = torch.stack([x, 2 * x, -x])
    close: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}
    want = torch.stack([plain(t, *rest) for t in batch])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(torch.vmap(lambda t: op(t, *rest))(batch), want, **close)
    weights = torch.stack([rest[0], rest[0] / 2, -rest[0]], 1)
    want = torch.stack([plain(t, w, *rest[1:]) for t, w in zip(batch, weights.unbind(1), strict=True)])
    got = torch.vmap(lambda t, w: op(t, w, *rest[1:]), in_dims=(0, 1))(batch, weights)
    torch.testing.assert_close(got, want, **close)

    def square(function: Callable[..., torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda t: function(t, *rest).square().sum()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # each says that the reference runs
        for transform in (torch.func.grad, lambda f: torch.func.grad(lambda t: torch.func.grad(f)(t).sum())):
            torch.testing.assert_close(transform(square(op))(x), transform(square(plain))(x), **close)
        got = torch.vmap(torch.func.grad(square(op)))(batch)
        torch.testing.assert_close(got, torch.vmap(torch.func.grad(square(plain)))(batch), **close)


@both
def test_autocast_never_lowers_what_it_was_given(package: ModuleType, name: str) -> None:
    op, tensors = getattr(package, name), _tensors(name)
    low = [tensors[0].bfloat16(), *tensors[1:]]
    want = _plain(name)(low[0].float(), *tensors[1:])
    with torch.autocast("cpu", torch.bfloat16):
        for out in (op(*low), getattr(torch.ops.cf_gradients, name)(*_arguments(name, low))):
            assert out.dtype == torch.float32
            torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-4)
        leaves = _leaves(low)
        op(*leaves).sum().backward()
    assert [t.grad.dtype for t in leaves if t.grad is not None] == [t.dtype for t in low]
    with pytest.raises(TypeError, match="but x is torch"):
        op(*low)


@both
def test_the_same_bits_again(package: ModuleType, name: str) -> None:
    runs = []
    for _ in range(3):
        leaves = _leaves(_tensors(name))
        out = getattr(package, name)(*leaves)
        out.square().sum().backward()
        runs.append([out.detach(), *(t.grad for t in leaves)])
    assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(runs[0], run, strict=True))


@both
def test_traced_for_training(package: ModuleType, name: str) -> None:
    op, plain = getattr(package, name), _plain(name)
    ours, theirs = _leaves(_tensors(name)), _leaves(_tensors(name))
    traced = torch.compile(lambda x, *t: op(x + 1.0, *t) * 2.0, fullgraph=True, backend="aot_eager")
    traced(*ours).square().sum().backward()
    (plain(theirs[0] + 1.0, *theirs[1:]) * 2.0).square().sum().backward()
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own.grad, other.grad, rtol=1e-4, atol=1e-4)


def test_export(package: ModuleType) -> None:
    module = package.Conv2dDivideLeakyReLU(8, 6, 3)
    x = _tensors(CONV)[0]
    sizes = {0: torch.export.Dim("n"), 2: torch.export.Dim("h", min=4), 3: torch.export.Dim("w", min=4)}
    with torch.no_grad():
        exported = torch.export.export(module, (x,), dynamic_shapes={"x": sizes})
    called = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
    assert called == [f"cf_gradients.{CONV}.default"]
    other = torch.randn(3, 8, 9, 7)
    assert torch.equal(exported.module()(other), module(other))


def _calls(work: Callable[[], Any]) -> list[str]:
    """The names of PyTorch's operators that ran."""
    seen: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    with Watch():
        work()
    return seen


def test_a_gradient_without_a_second_forward(package: ModuleType) -> None:
    leaves = _leaves(_tensors(CONV))
    out = package.conv2d_divide_leaky_relu(*leaves)
    calls = _calls(lambda: out.sum().backward())
    assert "convolution_backward" in calls
    assert "convolution" not in calls
    # A slope that hides the sign: the reference is computed again.
    for slope in (0.0, -0.5):
        ours, theirs = _leaves(_tensors(CONV)), _leaves(_tensors(CONV))
        package.conv2d_divide_leaky_relu(*ours, 2.0, slope).square().sum().backward()
        x, weight, bias = theirs
        F.leaky_relu(F.conv2d(x, weight, bias) / 2.0, slope).square().sum().backward()
        for own, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(own.grad, other.grad, rtol=1e-4, atol=1e-4)


def test_training_a_model(package: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    compared = importlib.import_module("train_cnn").compared
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no reference answers
        result = compared(package, (8, 6), 50, 8, 14, "cpu")
    assert result["replaced"] == 4
    assert result["worst_relative_loss_difference"] < 1e-3
    assert len(set(result["loss"]["frozen"])) == 50


@both
@pytest.mark.parametrize("transform", ["grad", "vjp", "jvp", "vmap of grad", "dual"])
def test_transforms_under_torch_compile(package: ModuleType, name: str, transform: str) -> None:
    x, *others = _tensors(name)
    frozen, plain = getattr(package, name), _plain(name)

    def made(op: Callable[..., torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
        def of(q: torch.Tensor) -> torch.Tensor:
            return op(q, *others)

        def dual(q: torch.Tensor) -> torch.Tensor:
            with torch.autograd.forward_ad.dual_level():
                both = torch.autograd.forward_ad.make_dual(q, torch.ones_like(q))
                tangent = torch.autograd.forward_ad.unpack_dual(of(both)).tangent
                assert tangent is not None
                return tangent

        def one(q: torch.Tensor) -> torch.Tensor:
            return of(q[None]).sum()

        return {
            "grad": torch.func.grad(lambda q: of(q).sum()),
            "vjp": lambda q: torch.func.vjp(of, q)[1](torch.ones_like(of(q)))[0],
            "jvp": lambda q: torch.func.jvp(of, (q,), (torch.ones_like(q),))[1],
            "vmap of grad": torch.vmap(torch.func.grad(one)),
            "dual": dual,
        }[transform]

    torch._dynamo.reset()
    found = torch.compile(made(frozen), backend="aot_eager")(x)
    want = made(plain)(x)
    assert want.abs().max() > 0
    torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-5)


def test_vmap_under_torch_compile_takes_the_kernel(package: ModuleType) -> None:
    x, weight, bias = _tensors(CONV)
    torch._dynamo.reset()
    op = package.conv2d_divide_leaky_relu
    mapped = torch.compile(torch.vmap(lambda q: op(q, weight, bias)), backend="eager")
    x = x[:, None]
    want = _plain(CONV)(x[:, 0], weight, bias)
    torch.testing.assert_close(mapped(x)[:, 0], want, rtol=1e-4, atol=1e-5)
    assert package.last_variant() is not None


@pytest.mark.parametrize("change", ["add_", "view", "relu_", "again", "checkpoint", "none"])
def test_a_result_may_be_changed_in_place(package: ModuleType, change: str) -> None:
    from torch.utils.checkpoint import checkpoint

    def trained(op: Callable[..., torch.Tensor]) -> Tensors:
        leaves = _leaves(_tensors(CONV))
        y = checkpoint(op, *leaves, use_reentrant=False) if change == "checkpoint" else op(*leaves)
        assert isinstance(y, torch.Tensor)
        if change == "add_":
            y += 1.0
        elif change == "view":
            y.view(-1).mul_(2.0)
        elif change == "relu_":
            y = y.relu_()
        (y**2).sum().backward(retain_graph=change == "again")
        if change == "again":
            (y**2).sum().backward()
        return [leaf.grad for leaf in leaves if leaf.grad is not None]

    for found, want in zip(trained(package.conv2d_divide_leaky_relu), trained(_plain(CONV)), strict=True):
        torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-4)


def test_nothing_is_kept_beyond_the_backward(package: ModuleType) -> None:
    leaves = _leaves(_tensors(CONV))
    y = package.conv2d_divide_leaky_relu(*leaves)
    node = y.grad_fn
    assert node.kept.data_ptr() == y.data_ptr()
    y.sum().backward()
    assert node.kept is None


def test_the_reference_alone(package: ModuleType) -> None:
    tensors = _tensors(CONV)
    kernel = package.conv2d_divide_leaky_relu(*tensors)
    assert str(package.last_variant()).startswith(f"{CONV}_")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with package.reference_only():
            reference = package.conv2d_divide_leaky_relu(*tensors)
            assert package.last_variant() is None
    torch.testing.assert_close(reference, _plain(CONV)(*tensors), rtol=0, atol=0)
    torch.testing.assert_close(kernel, reference, rtol=1e-4, atol=1e-5)
    package.conv2d_divide_leaky_relu(*tensors)
    assert package.last_variant() is not None
    x, weight, bias = tensors
    torch.func.grad(lambda q: package.conv2d_divide_leaky_relu(q, weight, bias).sum())(x)
    assert package.last_variant() is None


def test_a_sample_without_its_batch(package: ModuleType) -> None:
    x, weight, bias = _leaves(_tensors(CONV))
    want = package.conv2d_divide_leaky_relu(x, weight, bias)[1]
    assert torch.equal(package.conv2d_divide_leaky_relu(x[1], weight, bias), want)
    with torch.no_grad():
        assert torch.equal(package.conv2d_divide_leaky_relu(x[1], weight, bias), want)
        assert package.last_variant() is not None
    with pytest.raises(ValueError, match="x has shape"):
        package.conv2d_divide_leaky_relu(x[1, 1], weight, bias)
    mean = _tensors(MEAN)
    with pytest.raises(ValueError, match="x has shape"):  # its steps number the axes
        package.conv_transpose2d_mean_logsumexp(mean[0][0], *mean[1:])


def test_shapes_alone_are_refused_as_calls_are(package: ModuleType) -> None:
    x, weight = torch.empty(2, 9, 9, 9, device="meta"), torch.empty(4, 4, 3, 3, device="meta")
    with pytest.raises(ValueError, match="C_in must be divisible by groups=2, got 9"):
        package.conv2d_divide_leaky_relu(x, weight, None, groups=2)
    x, weight, bias = _tensors(CONV)
    with pytest.raises(ValueError, match=r"stride must be less than 2\*\*31"):
        package.conv2d_divide_leaky_relu(x, weight, bias, stride=2**70)


def test_a_warning_advises_what_can_be_tuned(package: ModuleType) -> None:
    x, weight, bias = _tensors(CONV)
    for dtype, text in ((torch.float16, "no template computes fp16 on cpu"), (torch.float32, "tune one: ")):
        wider = [torch.cat([t, t]).to(dtype) for t in (weight, bias)]
        with pytest.warns(RuntimeWarning, match=text):
            package.conv2d_divide_leaky_relu(x.to(dtype), *wider)
