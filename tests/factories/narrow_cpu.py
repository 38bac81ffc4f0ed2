"""Run networks with AVX2 only, in a separate program, because oneDNN reads its settings once.

    networks NAME ...    one prediction and one training step of each, in its task
    layers               the same for every operator that halves the resolution of few channels,
                         and for a layer that learns some of its filters
    run FILE ...         whole experiments

Several of them are given as a JSON list of lists of words. Each runs in a fork, so that libraries are imported once,
and one that crashes ends no other. Its output and its exit code are printed as JSON, a line for each. The name of each
part is written before it runs: after a crash, the last one is to blame.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from pathlib import Path

import numpy as np
import torch
from torch import nn

from driftlab.platform.adaptation.filters import row_gradients
from driftlab.platform.lab.seal import run
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.operators import OPERATORS
from driftlab.platform.networks.predict import predict, to_input
from driftlab.platform.networks.strided import make_safe
from driftlab.platform.networks.zoo import ZOO

CLASSES, SIDE, BATCH = 5, 32, 4
ROUNDS = 3  # the check runs when memory is freed


def say(name: str) -> None:
    sys.stdout.write(f"{name}\n")
    sys.stdout.flush()


def network(name: str) -> None:
    """Predict some frames, and learn these predictions: so every task has a truth."""
    model, task = build(name, CLASSES, seed=0), ZOO[name].task
    images = np.random.default_rng(0).integers(0, 255, (BATCH, SIDE, SIDE, 3), dtype=np.uint8)
    truth = predict(model, images, task=task)
    loss = task.loss(model.train()(to_input(images)), truth)
    assert loss is not None
    loss.backward()


def narrow(layer: nn.Module, channels: int) -> None:
    for side in (8, 15, 24) * ROUNDS:
        images = torch.randn(BATCH, side, side, channels).permute(0, 3, 1, 2).requires_grad_()
        layer(images).square().sum().backward()


def operators() -> None:
    for name, make in OPERATORS.items():
        for channels in range(1, 9):
            say(f"{name} {channels}")
            narrow(make_safe(make(channels, 2 * channels, 2)), channels)


def rows() -> None:
    for channels in range(1, 9):
        say(f"rows {channels}")
        layer = make_safe(nn.Sequential(nn.Conv2d(channels, 40, 1, 2)))
        with row_gradients(layer, {"0": np.arange(3)}):
            narrow(layer, channels)


def perform(what: str, *given: str) -> None:
    if what == "run":
        for file in given:
            say(file)
            assert not run(file, out=Path(file).with_suffix("")).failed
    elif what == "networks":
        for name in given:
            say(name)
            network(name)
    else:
        operators()
        rows()


def forked(words: list[str]) -> tuple[str, int]:
    """Return the output and the exit code of a fork that performs one of the above."""
    with tempfile.TemporaryFile("w+") as output:
        if not (child := os.fork()):
            for stream in (1, 2):
                os.dup2(output.fileno(), stream)
            try:
                perform(*words)
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        return output.read(), code


if __name__ == "__main__":
    torch.set_num_threads(1)
    for words in json.loads(sys.argv[1]):
        print(json.dumps(forked(words)), flush=True)  # noqa: T201
