# SPDX-License-Identifier: Apache-2.0
"""Settings, targets and atomic writes."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from coldforge.codegen import atomic
from coldforge.codegen.dtypes import dtype_named, precision_named
from coldforge.codegen.errors import ColdforgeError, CompileError, InputError, TargetUnavailable, UnknownName
from coldforge.codegen.settings import load_settings
from coldforge.codegen.target import Target, cpu_target, cpu_target_for, cuda_target, detect


def test_settings_defaults() -> None:
    settings = load_settings({"HOME": "/nowhere", "XDG_CACHE_HOME": "/cache"})
    assert settings.home == Path("/cache/coldforge")
    assert settings.jobs >= 1
    assert settings.may_build
    assert (settings.compile_limit_s, settings.trial_limit_s) == (120.0, 60.0)
    assert load_settings({"COLDFORGE_TRIAL_LIMIT_S": "2.5"}).trial_limit_s == 2.5


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"COLDFORGE_JOBS": "0"}, "from 1 to 1024"),
        ({"COLDFORGE_JOBS": "two"}, "'two'"),
        ({"COLDFORGE_BUILD": "yes"}, "must be 0 or 1"),
        ({"COLDFORGE_TRIAL_LIMIT_S": "soon"}, "COLDFORGE_TRIAL_LIMIT_S is 'soon'"),
        ({"COLDFORGE_TRIAL_LIMIT_S": "inf"}, "at most 86400"),
        ({"COLDFORGE_COMPILE_LIMIT_S": "nan"}, "more than 0"),
        ({"COLDFORGE_COMPILE_LIMIT_S": "-1"}, "more than 0"),
        ({"COLDFORGE_HOEM": "/x"}, "unknown environment variable COLDFORGE_HOEM"),
    ],
)
def test_settings_refused(environ: dict[str, str], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        load_settings(environ)


def test_cuda_targets_need_no_gpu() -> None:
    target = cuda_target("sm_90")
    assert target.attributes["max_shared_bytes"] == 227 * 1024
    assert pickle.loads(pickle.dumps(target)) == target
    assert Target.from_dict(target.to_dict()).attributes == target.attributes
    with pytest.raises(UnknownName, match="sm_120"):
        cuda_target("sm_35")


def test_cpu_targets() -> None:
    here = cpu_target()
    assert here.kind == "cpu"
    assert here.attributes["threads"] >= 1
    assert cpu_target_for(here.arch) == here
    assert cpu_target_for("x86-64-v4").attributes["vector_bytes"] == 64
    with pytest.raises(UnknownName):
        cpu_target_for("x86-64-v9")


def test_missing_target_is_bad_input() -> None:
    if detect("auto").kind == "cuda":
        pytest.skip("this machine has a GPU")
    with pytest.raises(TargetUnavailable) as caught:
        detect("cuda")
    assert caught.value.exit_code == 2
    with pytest.raises(UnknownName):
        detect("tpu")


def test_atomic_write_leaves_no_partial_file(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.txt"
    atomic.write_text(path, "one")
    atomic.write_text(path, "two")
    assert path.read_text() == "two"
    assert os.listdir(path.parent) == ["file.txt"]


def test_atomic_write_reports_what_it_cannot_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ColdforgeError, match="cannot write"):
        atomic.write_text(tmp_path / "file" / "below", "x")


def test_replace_tree(tmp_path: Path) -> None:
    for name, text in (("new", "2"), ("old", "1")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text(text)
    atomic.replace_tree(tmp_path / "new", tmp_path / "old")
    assert (tmp_path / "old" / "f").read_text() == "2"
    assert os.listdir(tmp_path) == ["old"]


def test_compile_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(CompileError("no", "log text")))
    assert str(error) == "no"
    assert error.log == "log text"


def test_precisions() -> None:
    assert precision_named(None, dtype_named("bf16")) == "bf16"
    with pytest.raises(UnknownName, match="tf32"):
        precision_named("fp8", dtype_named("fp32"))
