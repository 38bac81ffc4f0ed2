"""Measure the overhead over a bare PyTorch loop with the same work; prints a JSON line per system.

Both sides draw the same frames, run the same student on them, score every frame and train on the same samples:
once with labels from the server (`one_time`), or repeatedly on the device, frame by frame (`tent`). The bare side
has no nodes, no clock, no links, no encoded updates and no rows. Both run in turn in one process; `ratio` is the median
ratio of their processor times.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import tempfile
import time
from functools import partial
from typing import Any

import numpy as np
import torch
from _shared import options_of, report
from torch.nn import functional as F

from driftlab.datasets.catalogue import open_stream
from driftlab.platform.core.metrics import confusions, miou
from driftlab.platform.lab.builds import settings_of
from driftlab.platform.lab.cells import cells_of
from driftlab.platform.lab.progress import Progress
from driftlab.platform.lab.read import parse
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.predict import load, predict, to_input
from driftlab.platform.results.tables.recorder import Recorder
from driftlab.platform.sim.inline import InlineBackend, InlineSession
from driftlab.platform.sim.runner import Runner
from driftlab.platform.sim.setting import setup_key

WINDOW_S, BATCH, POOL = 10.0, 4, 32
SAMPLED = 1 / 3  # of the stream, before `one_time` learns


SYSTEMS: dict[str, dict[str, Any]] = {
    "one_time": {
        "name": "one_time",
        "streaming": {"name": "one_time", "codec": "png"},
    },
    "tent": {
        "name": "tent",
        "adaptation": {"name": "tent", "variant": "run", "predict_on": "frame", "stream_batch": POOL},
    },
}


def experiment(system: str, duration_s: float, iterations: int) -> dict[str, object]:
    """Return an experiment of one device that learns."""
    settings = copy.deepcopy(SYSTEMS[system])
    if system == "one_time":
        settings["streaming"] |= {"sample_s": duration_s * SAMPLED, "iterations": iterations}
    return {
        "name": "loop",
        "systems": [settings],
        "bounds": False,
        "snapshots": 0,
        "student": {"pretrain_steps": 5},
        "workloads": [{"name": "streets/driving_la", "duration_s": duration_s, "fps": 4.0}],
    }


def bare_tent(stream_seed: int, duration_s: float, weights: dict[str, np.ndarray]) -> float:
    """Predict frame by frame, and train on every 32 of them, without the platform."""
    stream = open_stream("streets/driving_la", seed=stream_seed, height=64, width=96, fps=4.0, duration_s=duration_s)
    model = build("tiny", 8, seed=0)
    load(model, weights)
    model.eval()
    norms = [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    learning = [parameter for norm in norms for parameter in norm.parameters()]
    model.requires_grad_(False)
    for parameter in learning:
        parameter.requires_grad_(True)
    optimiser, pool, scores = torch.optim.Adam(learning, lr=1e-3), [], []
    for start in np.arange(0.0, duration_s, WINDOW_S):
        frames = stream.at(np.arange(start, start + WINDOW_S, 0.25))
        predictions = []
        for image in frames.images:
            predictions.append(predict(model, image[None])[0])
            pool.append(image)
            if len(pool) == POOL:
                _follow(model, norms, optimiser, np.stack(pool))
                pool = []
        scores += miou(confusions(np.stack(predictions), frames.labels, 8)).tolist()
    return float(np.mean(scores))


def _follow(
    model: torch.nn.Module, norms: list[torch.nn.Module], optimiser: torch.optim.Optimizer, images: np.ndarray
) -> None:
    for norm in norms:
        norm.train()
    logs = F.log_softmax(model(to_input(images)), dim=1)
    optimiser.zero_grad()
    (-(logs.exp() * logs).sum(dim=1)).mean().backward()
    optimiser.step()
    for norm in norms:
        norm.eval()


def bare(stream_seed: int, duration_s: float, weights: dict[str, np.ndarray], iterations: int) -> float:
    """Do the work of `one_time` without the platform."""
    stream = open_stream("streets/driving_la", seed=stream_seed, height=64, width=96, fps=4.0, duration_s=duration_s)
    model = build("tiny", 8, seed=0)
    load(model, weights)
    model.eval()
    scores: list[float] = []
    for start in np.arange(0.0, duration_s, WINDOW_S):
        if start == duration_s * SAMPLED:
            _train(model, stream.at(np.arange(0.75, start, 1.0)), iterations)
        frames = stream.at(np.arange(start, start + WINDOW_S, 0.25))
        scores += miou(confusions(predict(model, frames.images), frames.labels, 8)).tolist()
    return float(np.mean(scores))


def _train(model: torch.nn.Module, frames: object, iterations: int) -> None:
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    rng = np.random.default_rng(0)
    for _ in range(iterations):
        rows = rng.integers(len(frames), size=BATCH)
        images, labels = to_input(frames.images[rows]), torch.from_numpy(frames.labels[rows]).long()
        optimiser.zero_grad()
        F.cross_entropy(model(images), labels, ignore_index=255).backward()
        optimiser.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--system", choices=list(SYSTEMS), action="append", help="both by default")
    parser.add_argument("--seconds", type=float, default=180.0, help="length of the stream")
    parser.add_argument("--iterations", type=int, default=100, help="training steps of one_time")
    options = options_of(parser, runs=0, seconds=30.0, iterations=2)
    for system in options.system or SYSTEMS:
        report(compare(system, options.seconds, options.runs, options.iterations))


def compare(system: str, seconds: float, runs: int, iterations: int) -> dict[str, object]:
    """Measure both sides in turn."""
    alone = {"one_time": partial(bare, iterations=iterations), "tent": bare_tent}[system]
    spec = parse(experiment(system, seconds, iterations))
    (cell,) = cells_of(spec)
    setting = settings_of(spec, InlineBackend(), Progress())[setup_key(cell.workload, cell.system.scaling, cell.seed)]
    weights = setting.apps["segmentation"].student.weights.reply.payload
    pairs = []
    for _ in range(runs + 1):
        begun = time.process_time()
        alone(cell.devices[0].apps[0].stream.seed, seconds, weights)
        middle = time.process_time()
        runner = Runner(cell, setting, InlineSession())
        runner.run()
        with tempfile.TemporaryDirectory() as folder:
            Recorder(folder).write(cell.id, runner.ledger.rows)
        pairs.append((middle - begun, time.process_time() - middle))
    counted = pairs[1:] or pairs  # the first pair is a warm-up
    return {
        "benchmark": "loop",
        "system": system,
        "bare_cpu_s": round(statistics.median(pair[0] for pair in counted), 2),
        "lab_cpu_s": round(statistics.median(pair[1] for pair in counted), 2),
        "ratio": round(statistics.median(pair[1] / pair[0] for pair in counted), 3),
        "goal": 0.8,
    }


if __name__ == "__main__":
    main()
