"""Trains with PyTorch, for comparison; a script that imports nothing of this package.

For each line such as `["eager bfloat16", 2.0]` of stdin (what to measure, for how many
seconds), it prints `[images, wall seconds, CPU seconds]`, or what failed. The data stay
on the device as uint8, and memory is channels_last.
"""

import itertools
import json
import os
import sys
import time

import numpy as np
import torch
from torch import nn


def _convnet(channels, side, filters=64, blocks=2, momentum=0.9):
    for _ in range(blocks):
        yield nn.Conv2d(channels, filters, 3, padding=1, bias=False)
        yield nn.BatchNorm2d(filters, eps=1e-3, momentum=1 - momentum)
        yield nn.MaxPool2d(2) if side > 1 else nn.Identity()
        yield nn.ReLU()
        channels, side = filters, side // 2
    yield nn.Flatten()


def _sequential(channels, side, dropout=0.5):
    for before, filters in ((channels, 32), (32, 64)):
        yield nn.Conv2d(before, filters, 3, padding=int(side < 10))
        yield from (nn.ReLU(), nn.MaxPool2d(2))
    yield from (nn.Flatten(), nn.Dropout(dropout))


def _lenet(channels, side):
    yield from (nn.Conv2d(channels, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2))
    yield from (
        nn.Conv2d(6, 16, 5, padding=2 * (side < 10)),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )
    yield from (
        nn.Flatten(),
        nn.LazyLinear(120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
    )


class _Block(nn.Module):
    def __init__(self, before, filters, stride, momentum):
        super().__init__()
        first = _normalized(before, filters, 3, stride, momentum)
        second = _normalized(filters, filters, 3, 1, momentum)
        self.branch = nn.Sequential(*first, nn.ReLU(), *second)
        changes = before != filters
        self.shortcut = nn.Sequential(
            *_normalized(before, filters, 1, stride, momentum) * changes
        )

    def forward(self, x):
        return torch.relu(self.shortcut(x) + self.branch(x))


def _normalized(before, filters, kernel, stride, momentum):
    layer = nn.Conv2d(before, filters, kernel, stride, kernel // 2, bias=False)
    return [layer, nn.BatchNorm2d(filters, momentum=1 - momentum)]


def _resnet18(channels, side, momentum=0.9):
    yield from (*_normalized(channels, 64, 3, 1, momentum), nn.ReLU())
    widths = (64, 64, 64, 128, 128, 256, 256, 512, 512)
    for before, filters in itertools.pairwise(widths):
        yield _Block(before, filters, 1 + (before != filters), momentum)
    yield from (nn.AdaptiveAvgPool2d(1), nn.Flatten())


_NETWORKS = {
    "convnet": _convnet,
    "sequential": _sequential,
    "lenet": _lenet,
    "resnet18": _resnet18,
}


def _step(spec, images, labels, compiles, dtype):
    """A function that takes the next training step and returns its loss."""
    side, channels = images.shape[2:]
    body = _NETWORKS[spec["network"]](channels, side, **spec["options"])
    model = nn.Sequential(*body, nn.LazyLinear(spec["classes"])).to(images.device)
    model(
        images[:2].permute(0, 3, 1, 2).float()
    )  # LazyLinear learns the size of its input
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(
        model.parameters(), spec["learning_rate"], spec["momentum"]
    )
    if spec["optimizer"] == "adam":
        optimizer = torch.optim.Adam(model.parameters(), spec["learning_rate"])
    if compiles:
        model = torch.compile(model, mode="max-autotune" if images.is_cuda else None)

    def step():
        rows = torch.randint(len(images), (spec["batch"],), device=images.device)
        x = images[rows].permute(0, 3, 1, 2).to(dtype) / 255
        with torch.autocast(images.device.type, dtype, enabled=dtype != torch.float32):
            loss = nn.functional.cross_entropy(model(x), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


def _main(spec):
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    torch.set_num_threads(spec["threads"])
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found = (
        np.load(f"{spec['data']}/{name}.npy", allow_pickle=False)
        for name in ("image", "label")
    )
    images, labels = (torch.from_numpy(array).to(device) for array in found)
    steps = {}

    def run(name, seconds):
        if name not in steps:
            way, dtype = name.split()
            steps[name] = _step(
                spec, images, labels, way == "compiled", getattr(torch, dtype)
            )
        steps[name]().item()
        count, wall, cpu = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() < wall + seconds:
            for _ in range(4):
                loss = steps[name]()
            loss.item()  # waits: a GPU runs asynchronously
            count += 4 * spec["batch"]
        return count, time.perf_counter() - wall, time.process_time() - cpu

    print(json.dumps(f"PyTorch {torch.__version__}"), file=answers, flush=True)
    for line in sys.stdin:
        try:
            answer = run(*json.loads(line))
        except Exception as error:
            answer = {
                "error": f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
            }
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
