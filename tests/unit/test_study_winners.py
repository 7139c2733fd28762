# SPDX-License-Identifier: Apache-2.0
"""Winners in and out of storage: byte for byte, the newest of each key."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from coldforge.codegen.errors import InputError, UnknownName
from coldforge.codegen.freeze.winner import Winner
from coldforge.tuner.identity import StudyInputs
from coldforge.tuner.storage import open_storage
from coldforge.tuner.study import Study, open_study
from coldforge.tuner.winners import collect_winners, winner_from_dict, winner_to_dict
from optuna.storages import BaseStorage

WINNER = Winner(
    operator="conv2d_mish",
    family="conv2d",
    template="direct",
    operator_digest="d",
    target={"kind": "cuda", "arch": "sm_90", "device": "a GPU", "attributes": {"sm": 90}},
    dtype="fp32",
    precision="fp32",
    specialisation={"dtype": "fp32", "C_in": 8},
    workload={"N": 128, "C_in": 8},
    workload_name="seed",
    config={"TILE_X": 32, "WEIGHTS": "shared"},
    source_text='extern "C" __global__ void coldforge_kernel() {} // ümlaut\n',
    source_name="conv2d_mish_direct_fp32_32_shared_sm_90_12345678",
    source_digest="12345678",
    binary=bytes(range(256)) * 40,
    launch={"grid": "N * 2", "block": "128", "shared_bytes": "0"},
    derived={"THREADS": "128"},
    compiler="nvrtc 13.0",
    flags=("--gpu-architecture=sm_90", "-O3"),
    resources={"registers": 64},
    measurement={"time_ms": 0.5, "floor_ms": 0.2, "error": 1e-7, "bound_ratio": 0.1},
    study="the-study",
)


def _study(storage: BaseStorage, operator: str, workload: str, compiler: str = "nvrtc 13.0") -> Study:
    target = {"kind": "cuda", "arch": "sm_90", "device": "a GPU", "attributes": {}}
    problem = {"dims": {"workload": len(workload)}}
    return open_study(
        storage, StudyInputs(operator, workload, "d", problem, "fp32", target, {"direct": ""}, {}, compiler)
    )


def _store(study: Study, winner: Winner, **changes: Any) -> Winner:
    stored = dataclasses.replace(winner, study=study.name, **changes)
    record = {"trials": 1, "final": True, "time_ms": stored.time_ms, "winner": winner_to_dict(stored)}
    study.set_winner(record, [])
    study.touch()
    return stored


def test_a_winner_survives_storage_whole(tmp_path: Path) -> None:
    for winner in (WINNER, dataclasses.replace(WINNER, binary=None)):
        back = winner_from_dict(json.loads(json.dumps(winner_to_dict(winner))))
        assert back == winner
        for field in dataclasses.fields(Winner):
            assert getattr(back, field.name) == getattr(winner, field.name)
        assert back.key == winner.key
        assert back.binary_digest == winner.binary_digest


def test_the_newest_of_each_key_is_collected(tmp_path: Path) -> None:
    storage = open_storage(None, tmp_path)
    assert storage is not None
    old = _store(_study(storage, "conv2d_mish", "seed"), WINNER)
    new = _store(_study(storage, "conv2d_mish", "seed", "nvrtc 13.1"), WINNER, compiler="nvrtc 13.1")
    other = _store(
        _study(storage, "conv2d_mish", "rgb"), WINNER, workload={"N": 1, "C_in": 8}, workload_name="rgb"
    )
    relu = _store(_study(storage, "conv2d_relu", "seed"), WINNER, operator="conv2d_relu")
    found = collect_winners(storage)
    assert {w.study for w in found} == {new.study, other.study, relu.study}
    assert [w.key for w in found] == sorted(w.key for w in found)
    assert {w.study for w in collect_winners(storage, ["conv2d_mish"])} == {new.study, other.study}
    assert collect_winners(storage, [old.study]) == [old]


def test_names_without_winners(tmp_path: Path) -> None:
    storage = open_storage(None, tmp_path)
    assert storage is not None
    _study(storage, "conv2d_mish", "seed").touch()
    assert collect_winners(storage) == []
    assert collect_winners(None) == []
    with pytest.raises(InputError, match="conv2d_mish has no winner yet"):
        collect_winners(storage, ["conv2d_mish"])
    with pytest.raises(UnknownName, match="unknown study 'nope'"):
        collect_winners(storage, ["nope"])
