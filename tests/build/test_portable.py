# SPDX-License-Identifier: Apache-2.0
"""PTX of frozen kernels: which have it, that newer architectures can be compiled from it, what a package does
with it on a GPU of another architecture (here a pretended one)."""

from __future__ import annotations

import dataclasses
import importlib
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from coldforge.codegen.catalogue import catalogue
from coldforge.codegen.compile import nvrtc
from coldforge.codegen.errors import InputError, ToolMissing
from coldforge.codegen.freeze import Winner, freeze, load_winners, read_bundle, with_ptx, write_bundle
from coldforge.codegen.freeze.portable import ptx_facts
from coldforge.codegen.problem import make_problem
from coldforge.codegen.render import render
from coldforge.codegen.target import cuda_target
from coldforge.generated.runtime import manifest

pytestmark = pytest.mark.build

CONV, MEAN = "conv2d_divide_leaky_relu", "conv_transpose2d_mean_logsumexp"
PTX = ".version 9.0\n.target sm_80\n.visible .entry coldforge_kernel(\n)\n{ ret; }\n"
WinnerFactory = Callable[..., Winner]


def _rendered(cuda: WinnerFactory, operator: str, template: str, arch: str = "sm_90") -> Winner:
    """A winner with the real source of a template's default."""
    known = catalogue()
    declared, target = known.operator(operator), cuda_target(arch, "NVIDIA H200")
    (space,) = known.spaces(declared, "cuda", template)
    problem = make_problem(declared, "seed")
    config = space.default_for(problem, target)
    assert config is not None
    source = render(space, problem, config, target)
    return cuda(
        operator=operator,
        family=declared.family.name,
        template=template,
        operator_digest=declared.digest,
        target=target.to_dict(),
        source_text=source.text,
        source_name=source.name,
        source_digest=source.digest,
        specialisation=problem.specialisation,
        workload=problem.dims,
        config=dict(config),
        launch={name: e.text for name, e in space.launch_exprs.items()},
        derived={name: e.text for name, e in space.derived.items()},
    )


@pytest.mark.parametrize(("operator", "template"), [(CONV, "direct"), (CONV, "tensor"), (MEAN, "collapsed")])
def test_a_portable_template_gives_ptx_for_every_newer_architecture(
    fake_cuda_winner: WinnerFactory, operator: str, template: str
) -> None:
    (winner,), why = with_ptx([_rendered(fake_cuda_winner, operator, template)], catalogue())
    assert why == {}
    assert winner.ptx is not None
    facts = ptx_facts(winner.ptx)
    assert (facts.least, facts.arch) == (80, "compute_80")
    assert facts.version == _version_of_nvrtc()
    # The assemblers of other architectures take the same text.
    for arch in ("sm_86", "sm_120"):
        there = nvrtc.portable_ptx(winner.source_text, winner.source_name, arch)
        assert ptx_facts(there).least == int(arch[3:])


def _version_of_nvrtc() -> str:
    major, minor = map(int, nvrtc.compiler_version().removeprefix("nvrtc ").split("."))
    return f"{major - 4}.{minor}" if major >= 13 else f"8.{minor if minor <= 5 else minor - 1}"


def test_instructions_of_one_architecture_give_none(fake_cuda_winner: WinnerFactory) -> None:
    winner = _rendered(fake_cuda_winner, CONV, "warpgroup")
    beside = dataclasses.replace(winner, binary=None, portable_only=True)
    found, why = with_ptx([winner, beside], catalogue())
    assert found == [winner]  # what would be frozen for its PTX alone is left out
    assert why[winner.name] == "its instructions are those of sm_90a alone"
    assert set(why) == {winner.name, beside.name}


def test_ptx_that_is_there_is_kept_and_needs_no_compiler(
    fake_cuda_winner: WinnerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise ToolMissing("no NVRTC here")

    monkeypatch.setattr(nvrtc, "_library", missing)
    new = _rendered(fake_cuda_winner, MEAN, "collapsed")
    held = dataclasses.replace(new, ptx=PTX, study="an earlier one")
    (winner,), why = with_ptx([new], catalogue(), [held])
    assert (winner.ptx, why) == (PTX, {})
    assert with_ptx([new], catalogue()) == ([new], {new.name: "no NVRTC here"})


def test_a_package_and_a_bundle_keep_it(
    fake_cuda_winner: WinnerFactory, naive_winner: WinnerFactory, tmp_path: Path
) -> None:
    winner = fake_cuda_winner(ptx=PTX)
    other = fake_cuda_winner(ptx=PTX, portable_only=True, binary=None)
    winners = [winner, other, naive_winner()]
    freeze(winners, tmp_path / "cf_kept", "cf_kept")
    assert sorted(load_winners(tmp_path / "cf_kept"), key=lambda w: w.name) == sorted(
        winners, key=lambda w: w.name
    )
    write_bundle(tmp_path / "a.bundle", winners)
    assert {w.key: w for w in read_bundle(tmp_path / "a.bundle").winners} == {w.key: w for w in winners}
    table = (tmp_path / "cf_kept" / "kernels" / "table.cpp").read_text()
    assert f'"{winner.name}@sm_90", 90' in table
    assert f'"{winner.name}@compute_80", 80' in table
    assert f"{other.name}@sm_90" not in table


@pytest.mark.parametrize(
    "text",
    [
        "",
        PTX.replace("sm_80", "sm_90a"),
        PTX.replace("coldforge_kernel", "another"),
        PTX.replace(".version 9.0", ".version nine"),
        PTX + "\0",
        PTX + "\N{LATIN SMALL LETTER E WITH ACUTE}",
    ],
)
def test_what_is_no_portable_ptx_is_refused(
    fake_cuda_winner: WinnerFactory, tmp_path: Path, text: str
) -> None:
    winner = fake_cuda_winner(ptx=text)
    with pytest.raises(InputError, match=f"entry {winner.name}: its PTX is no portable PTX"):
        freeze([winner], tmp_path / "cf_bad", "cf_bad")


def test_a_portable_winner_without_ptx_is_refused(fake_cuda_winner: WinnerFactory, tmp_path: Path) -> None:
    winner = fake_cuda_winner(portable_only=True, binary=None)
    with pytest.raises(InputError, match="a portable one PTX alone"):
        freeze([winner], tmp_path / "cf_bad", "cf_bad")


def test_what_the_repository_holds_is_portable_where_it_can_be() -> None:
    for entry in manifest.load().entries:
        if entry["target"]["kind"] != "cuda":
            continue
        source = (manifest.ROOT / entry["source"]["file"]).read_text()
        assert ("ptx" in entry) == (nvrtc.own_arch(source) is None), entry["name"]
        if "ptx" in entry:
            facts = ptx_facts((manifest.ROOT / entry["ptx"]["file"]).read_text())
            assert facts.to_dict() == {"arch": entry["ptx"]["arch"], "isa": entry["ptx"]["isa"]}


@pytest.fixture
def package(
    tmp_path: Path,
    fake_cuda_winner: WinnerFactory,
    naive_winner: WinnerFactory,
    frozen_package: Callable[..., ModuleType],
    request: pytest.FixtureRequest,
) -> ModuleType:
    name = f"cf_{request.node.name}"[:40]
    winner = fake_cuda_winner(ptx=PTX)
    module = frozen_package(tmp_path, name, [winner, naive_winner()])
    library = Path(module.runtime.package.build.extension_path(module.runtime.manifest.load()))
    assert PTX.encode() + b"\0" in library.read_bytes()
    return module


class Gpu:
    """A pretended GPU of another architecture, behind what the runtime asks of PyTorch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, package: ModuleType, capability: tuple[int, int]):
        self.verify = importlib.import_module(f"{package.__name__}.runtime.verify")
        self.package = importlib.import_module(f"{package.__name__}.runtime.package")
        self.capturing, self.checked = False, list[str]()
        self.result = {"ok": True, "why": "", "ratio": 0.1, "error": 1e-7}
        self.tensor: Any = SimpleNamespace(is_cuda=True, dtype=torch.float32, device=torch.device("cuda:0"))
        cuda = torch.cuda
        monkeypatch.setattr(cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(cuda, "is_current_stream_capturing", lambda: self.capturing)
        monkeypatch.setattr(cuda, "device", lambda device: warnings.catch_warnings())
        monkeypatch.setattr(self.verify, "_check_variant", self._check)

    def _check(self, extension: Any, number: int, entry: Any, op: Any) -> dict[str, Any]:
        self.checked.append(extension.variants[number])
        return self.result

    @property
    def op(self) -> Any:
        return self.package.OPERATORS[CONV]

    @property
    def enabled(self) -> list[str]:
        return [v for v in self.package.STATE.extension.enabled() if "@compute_" in v]

    def look(self) -> bool:
        return self.package.check_more(self.op, self.tensor)


def test_a_first_call_on_another_architecture_checks_its_ptx_once(
    package: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Gpu(monkeypatch, package, (8, 6))
    assert gpu.enabled == []
    gpu.capturing = True
    assert gpu.look() is False  # nothing can be compiled and run while a graph is captured
    gpu.capturing = False
    assert gpu.look() is True
    assert gpu.look() is False
    (variant,) = gpu.checked
    assert gpu.enabled == [variant]
    record = gpu.verify.read_record(package.runtime.manifest.load())
    assert record[f"{variant} on sm_86"]["ok"] is True
    # Another process of that machine believes the record.
    gpu.package.STATE.extension.enable(gpu.package.STATE.extension.variants.index(variant), False)
    gpu.package._PORTABLE_CHECKED.clear()
    assert gpu.look() is True
    assert len(gpu.checked) == 1


def test_a_check_that_ends_in_the_reference_neither_warns_nor_checks_again(
    package: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Gpu(monkeypatch, package, (8, 6))
    fallback = importlib.import_module(f"{package.__name__}.runtime.fallback")
    arguments = (torch.randn(1, 8, 5, 5), torch.randn(6, 8, 3, 3), torch.randn(6), 2.0, 0.01)
    arguments = (*arguments, [1, 1], [0, 0], [1, 1], 1, None)
    met: list[torch.Tensor] = []

    def check(*_: Any) -> dict[str, Any]:
        # Another entry of the same operator is off as well: its reference must not wait for this very check.
        for reason in ("not verified on this machine: another", "no frozen kernel fits this GPU: another"):
            met.append(fallback.answer(gpu.op, *arguments, reason))
        return gpu.result

    monkeypatch.setattr(gpu.verify, "_check_variant", check)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert gpu.look() is True
    assert len(met) == 2
    # A user's call of the same kind warns all the same.
    with pytest.warns(RuntimeWarning, match="no frozen kernel fits this GPU: another"):
        fallback.answer(gpu.op, *arguments, "no frozen kernel fits this GPU: another")


def test_wrong_ptx_stays_off_and_older_gpus_and_other_dtypes_are_left_alone(
    package: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu = Gpu(monkeypatch, package, (7, 5))
    assert gpu.look() is False
    gpu.tensor.dtype = torch.float16
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (12, 0))
    assert gpu.look() is False
    assert gpu.checked == []
    gpu.tensor.dtype, gpu.tensor.device = torch.float32, torch.device("cuda:1")
    gpu.result = {"ok": False, "why": "9 times the error allowed", "ratio": 9.0, "error": 1.0}
    assert gpu.look() is False
    assert gpu.enabled == []
    assert "on sm_120 is wrong on this machine and stays off: 9 times" in capsys.readouterr().err
    # What the driver refuses is neither wrong nor recorded.
    gpu.tensor.device = torch.device("cuda:2")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    gpu.result = {"ok": False, "ran": False, "why": "the kernel did not run", "ratio": None, "error": None}
    assert gpu.look() is False
    assert gpu.enabled == []
    assert capsys.readouterr().err == ""
    assert not any("sm_89" in name for name in gpu.verify.read_record(package.runtime.manifest.load()))
    host = torch.zeros(1)
    assert gpu.package.check_more(gpu.op, host) is False


def test_the_call_is_made_again_where_ptx_was_found(
    package: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    fallback = importlib.import_module(f"{package.__name__}.runtime.fallback")
    op = package.runtime.package.OPERATORS[CONV]
    arguments = (torch.randn(1, 8, 5, 5), torch.randn(6, 8, 3, 3), torch.randn(6), 2.0, 0.01)
    arguments = (*arguments, [1, 1], [0, 0], [1, 1], 1, None)
    monkeypatch.setattr(package.runtime.package, "check_more", lambda op, tensor: True)
    found = fallback.answer(op, *arguments, "not verified on this machine: an entry")
    assert package.runtime.package.STATE.extension.last() is not None  # a kernel, not the reference
    # A GPU that nothing fits: the reference, and one warning with the command that tunes there.
    reason = "no frozen kernel fits this GPU: an entry is PTX 9.5 and the driver takes 9.0"
    with pytest.warns(RuntimeWarning, match=rf"PTX 9\.5.*tune one: coldforge tune {CONV} --target") as seen:
        again = [fallback.answer(op, *arguments, reason) for _ in range(3)]
    assert len([w for w in seen if issubclass(w.category, RuntimeWarning)]) == 1
    for one in again:
        torch.testing.assert_close(one, found, rtol=1e-4, atol=1e-5)
