# SPDX-License-Identifier: Apache-2.0
"""What a call of a shape that was seen costs: no look at any entry, however many shapes a model has."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch
from coldforge.codegen.freeze import GENERATED
from coldforge.codegen.settings import load_settings

pytestmark = pytest.mark.build

PROGRAM = r"""
#include "select.h"

#include <cstdio>

namespace coldforge {
namespace {

int looks = 0;  // how often an entry was asked whether it covers a call
const int64_t kTuned[] = {8, 64};
const Measured kMeasured[] = {{kTuned, 1.0, 512.0}};
const int kSizes[] = {0, 1};

bool covers(const int64_t*) { return ++looks > 0; }

Launch launch(const int64_t* values, const Machine&) {
  Launch found{};
  found.work = values[0] * values[1];
  return found;
}

// Asks for each shape; returns how often an entry was looked at for it.
int ask(const Operator& op, int shapes, size_t answers) {
  const int before = looks;
  for (int i = 0; i < shapes; ++i) {
    const std::string model = "a model";  // of this call alone, as its values are
    const int64_t values[] = {1 + i % 5, 7 * i + 1};
    Request request{};
    request.kind = Kind::cpu;
    request.dtype = DType::fp32;
    request.precision_eps = 1.0;
    request.level = 3;
    request.model = &model;
    request.values = values;
    if (selected(op, kVariants, request).size() != answers) std::puts("another number of answers");
  }
  return looks - before;
}

}  // namespace

const Variant kVariants[1] = {};
const int kVariantCount = 1;

}  // namespace coldforge

int main() {
  using namespace coldforge;
  Entry entry{};
  entry.name = "entry";
  entry.kind = Kind::cpu;
  entry.model = "a model";
  entry.dtype = DType::fp32;
  entry.variant_count = 1;
  entry.measured = kMeasured;
  entry.measured_count = 1;
  entry.covers = covers;
  entry.launch = launch;
  Operator op{};
  op.value_count = op.size_count = 2;
  op.size_values = kSizes;
  op.entries = &entry;
  op.entry_count = 1;

  std::printf("off: %d\n", ask(op, 100, 0));
  enabled_flags()[0] = 1;
  ++enabled_changes();
  std::printf("on: %d\n", ask(op, 100, 1));
  std::printf("again: %d\n", ask(op, 100, 1));
  forced_variant() = 0;
  std::printf("forced: %d\n", ask(op, 100, 1));
  forced_variant() = -1;
  std::printf("not forced: %d\n", ask(op, 100, 1));
  std::printf("in turns with more than there is room for: %d\n", ask(op, 300, 1) + ask(op, 300, 1) < 600);
  enabled_flags()[0] = 0;
  ++enabled_changes();
  std::printf("off again: %d\n", ask(op, 100, 0));
}
"""


def test_shapes_that_were_seen_are_remembered(tmp_path: Path) -> None:
    source, program = tmp_path / "memory.cpp", tmp_path / "memory"
    source.write_text(PROGRAM)
    folders = [GENERATED / "runtime" / "native", Path(torch.__file__).parent / "include"]
    includes = [f"-I{folder}" for folder in folders]
    loose = "-Wl,--unresolved-symbols=ignore-all"  # what runs a kernel calls PyTorch; no kernel runs here
    command = [load_settings().cxx, "-std=c++17", "-O1", *includes, str(source), loose, "-o", str(program)]
    subprocess.run(command, check=True)
    told = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    assert told.splitlines() == [
        "off: 100",
        "on: 100",
        "again: 0",
        "forced: 100",
        "not forced: 0",
        "in turns with more than there is room for: 1",
        "off again: 100",
    ]
