# SPDX-License-Identifier: Apache-2.0
"""A small CNN, trained as PyTorch runs it and with frozen operators in it: the loss of each step, the time.

Four blocks of convolution, bias, division and leaky ReLU, each of channels that a frozen kernel of
`conv2d_divide_leaky_relu` covers (8 -> 64, 3x3), with 1x1 convolutions between them, on synthetic data. Both
models start from the same weights and see the same batches, step by step in turn.

    python benchmarks/train_cnn.py --target cuda --batch 64 --image 64 --out train.json
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import coldforge.generated
import torch
import torch.nn.functional as F
from coldforge.codegen.atomic import write_text
from torch import Tensor, nn


class Block(nn.Module):
    """Convolution, bias, division, leaky ReLU: written out, as in a model of somebody's own."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inside, outside, 3)

    def forward(self, x: Tensor) -> Tensor:
        """[N, inside, H, W] -> [N, outside, H - 2, W - 2]."""
        return F.leaky_relu(self.conv(x) / 2.0, negative_slope=0.01)


class Net(nn.Module):
    """Four blocks and a classifier.

    Args:
        channels: of a block, inside and outside.
    """

    def __init__(self, channels: tuple[int, int], classes: int) -> None:
        super().__init__()
        inside, outside = channels
        self.stem = nn.Conv2d(3, inside, 1)
        self.blocks = nn.ModuleList(Block(inside, outside) for _ in range(4))
        self.between = nn.ModuleList(nn.Conv2d(outside, inside, 1) for _ in range(3))
        self.head = nn.Linear(outside, classes)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 3, H, W] -> [N, classes]."""
        x = self.blocks[0](self.stem(x))
        for narrow, block in zip(self.between, list(self.blocks)[1:], strict=True):
            x = block(narrow(x))
        return self.head(x.mean((2, 3)))


def data(steps: int, batch: int, image: int, classes: int, device: str) -> list[tuple[Tensor, Tensor]]:
    """Batches whose label is the strength of a pattern in the images, so that there is something to learn."""
    g = torch.Generator().manual_seed(5)
    found = []
    for _ in range(steps):
        labels = torch.randint(classes, (batch,), generator=g)
        x = torch.randn(batch, 3, image, image, generator=g) + (labels.view(-1, 1, 1, 1) - classes / 2)
        found.append((x.to(device), labels.to(device)))
    return found


def train(
    models: dict[str, nn.Module], batches: list[tuple[Tensor, Tensor]], wait: Callable[[], Any]
) -> dict[str, dict[str, list[float]]]:
    """Loss and ms of each step of each model."""
    optimizers = {n: torch.optim.Adam(m.parameters(), lr=3e-3) for n, m in models.items()}
    runs: dict[str, dict[str, list[float]]] = {name: {"loss": [], "ms": []} for name in models}
    for x, labels in batches:
        for name, model in models.items():
            wait()
            begin = time.perf_counter()
            optimizers[name].zero_grad()
            loss = F.cross_entropy(model(x), labels)
            loss.backward()
            optimizers[name].step()
            runs[name]["loss"].append(loss.item())
            wait()
            runs[name]["ms"].append(1e3 * (time.perf_counter() - begin))
    return runs


def compared(
    package: ModuleType, channels: tuple[int, int], steps: int, batch: int, image: int, device: str
) -> dict[str, Any]:
    """Both trainings, and both models in evaluation."""
    torch.manual_seed(0)
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    plain = Net(channels, 10).to(device)
    frozen = package.replace(copy.deepcopy(plain))
    batches = data(steps, batch, image, 10, device)
    runs = train({"eager": plain.train(), "frozen": frozen.train()}, batches, wait)
    evaluated = {}
    with torch.no_grad():
        for name, model in (("eager", plain.eval()), ("frozen", frozen.eval())):
            times = []
            for x, _ in batches[: min(20, steps)]:
                wait()
                begin = time.perf_counter()
                model(x)
                wait()
                times.append(1e3 * (time.perf_counter() - begin))
            evaluated[name] = statistics.median(times)
    off = [
        abs(a - b) / max(abs(a), 1e-3)
        for a, b in zip(runs["eager"]["loss"], runs["frozen"]["loss"], strict=True)
    ]
    half = steps // 2
    return {
        "replacements": str(frozen.replacements),
        "replaced": len(frozen.replacements.replaced),
        "loss": {name: run["loss"] for name, run in runs.items()},
        "worst_relative_loss_difference": max(off),
        "step_ms": {name: statistics.median(run["ms"][half:]) for name, run in runs.items()},
        "evaluation_ms": evaluated,
    }


def main() -> int:
    """Prints, and writes if asked, one JSON document; exit code 1 when the loss curves part."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--image", type=int, default=32)
    parser.add_argument("--tolerance", type=float, default=0.02, help="of a loss, relative")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    size = (options.steps, options.batch, options.image)
    result = compared(coldforge.generated, (8, 64), *size, options.target)
    document = {
        "command": "python benchmarks/train_cnn.py " + " ".join(sys.argv[1:]),
        "device": torch.cuda.get_device_name() if options.target == "cuda" else platform.processor() or "cpu",
        "torch": torch.__version__,
        **result,
        "tolerance": options.tolerance,
        "same_curve": result["worst_relative_loss_difference"] <= options.tolerance,
    }
    print(json.dumps(document, indent=1))
    if options.out is not None:
        write_text(options.out, json.dumps(document, indent=1) + "\n")
    return 0 if document["same_curve"] and document["replaced"] == 4 else 1


if __name__ == "__main__":
    sys.exit(main())
