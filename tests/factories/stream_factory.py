"""An application that trains online: a processor computed by hand, and members that count passes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import nn

from driftlab.datasets.frames import Frames
from driftlab.platform.adaptation.base import EMPTY_PACK, Adaptation, Adapted, Batch, Phase
from driftlab.platform.core.records import LayerCost, ModelCost, Passes, Weights
from driftlab.platform.core.registry import Member
from driftlab.platform.networks import vector
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.cost_counter import count_cost
from driftlab.platform.networks.predict import state_of
from driftlab.platform.sim.nodes.application import AppNode
from driftlab.platform.sim.setting import AppNodeConfig, StudentSpec
from driftlab.platform.world import hardware
from driftlab.platform.world.processor import ShareSchedule

HEIGHT, WIDTH, CLASSES, FPS = 16, 24, 4, 2.0
FIXED = Member("scaling", "fixed")
LAYERS = (
    LayerCost("a", "Conv", macs=3_000_000, parameters=10, input_bytes=100, output_bytes=200, weight_bytes=40),
    LayerCost("b", "BatchNorm", macs=1_000_000, parameters=2, input_bytes=200, output_bytes=200, weight_bytes=8),
)
ENERGY = hardware.Energy(mac_pj=1e3, cache_pj_per_byte=0.0, dram_pj_per_byte=1e6, cached=0.0)
WHOLE: ShareSchedule = ((0.0, 1.0),)


@dataclass(frozen=True)
class Steps(Adaptation):
    """Increase the first weight by 1 per step over the whole batch, and keep 1000 bytes of state."""

    stream_batch: int = 4
    training_runs: str = "exclusive"
    predict_on: str = "frame"
    episodic: bool = False
    steps: int = 1

    labels = "none"

    def prepare(self, model: nn.Module, pack: Weights = EMPTY_PACK, *, go_on: Any = None) -> dict[str, Any]:
        return {"start": vector.read(model), "lessons": 0 if go_on is None else go_on["lessons"]}

    def adapt(self, model: nn.Module, state: Any, batch: Batch, phase: Phase) -> Adapted:
        if not self.steps:
            return Adapted(state, skipped="no steps", passes=Passes())
        with torch.no_grad():
            next(iter(model.parameters())).view(-1)[0] += self.steps
        frames = (len(batch.images),) * self.steps
        work = Passes(frames, frames, trained=("b",), kept_bytes=1000)
        return Adapted({**state, "lessons": state["lessons"] + 1}, self.steps, (0.5,) * self.steps, passes=work)

    def reset(self, model: nn.Module, state: Any) -> Any:
        vector.write(model, state["start"])
        return self.prepare(model)


def steps(**params: Any) -> Member:
    return Member("adaptation", "stream_factory:Steps", tuple(params.items()))


@cache
def weights(network: str = "half") -> Weights:
    return state_of(build(network, CLASSES, seed=1))


@cache
def cost() -> ModelCost:
    """Account for a network of two layers, with as many parameters as the one that runs has."""
    parameters = vector.layout_of(build("half", CLASSES, seed=1)).size
    return ModelCost(4_000_000, parameters, 48, 300, LAYERS)


def machine(macs_per_s: float) -> hardware.Hardware:
    """Describe hardware whose time is that of its arithmetic only; a frame takes 4 million operations."""
    found = hardware.find("server-h200")
    return replace(found, macs_per_s=macs_per_s, bytes_per_s=1e30, overhead_s=0.0, energy=ENERGY)


def application(adaptation: Member, macs_per_s: float = 24e6 / 0.65, network: str = "half", **spec: Any) -> AppNode:
    """Make an application whose processor trains a batch of one step in 0.65 s by default."""
    student = StudentSpec(network, CLASSES, HEIGHT, WIDTH, adaptation, spec.pop("scaling", FIXED), 0)
    made_from = spec.pop("weights", None) or weights(network)
    pack = spec.pop("pack", EMPTY_PACK)
    node_spec = AppNodeConfig("cam", "app", student, machine(macs_per_s), spec.pop("cost", cost()), **spec)
    return AppNode(node_spec, made_from, pack)


def real_app(adaptation: Member, frame_s: float = 0.3, network: str = "half", **spec: Any) -> AppNode:
    """Make an application with real costs of its network, and a processor with this time per frame."""
    counted = count_cost(build(network, CLASSES, seed=1), HEIGHT, WIDTH)
    return application(adaptation, counted.macs / frame_s, network, cost=counted, **spec)


@cache
def stream(seconds: float = 20.0, fps: float = FPS, seed: int = 0) -> Frames:
    """Draw a coarse texture that moves; the scene changes every 8 s."""
    count = round(seconds * fps)
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (4, 40, 3)).repeat(4, axis=0).repeat(4, axis=1).astype(np.uint8)
    images = np.stack([coarse[:, k % 100 : k % 100 + WIDTH] for k in range(count)])
    noise = rng.integers(0, 20, images.shape, dtype=np.uint8)
    labels = rng.integers(0, CLASSES, (count, HEIGHT, WIDTH), dtype=np.uint8)
    times_s = np.arange(count) / fps
    scenes = (times_s // 8).astype(np.int32)
    boxes = tuple(np.array([[0, 2, 2, 14, 12]] * (k % 3), np.float32).reshape(-1, 5) for k in range(count))
    return Frames(times_s, np.minimum(images, 235) + noise, scenes, labels, boxes, scenes.astype(np.int64))


def between(frames: Frames, start_s: float, stop_s: float) -> Frames:
    return frames[(frames.times_s >= start_s) & (frames.times_s < stop_s)]


def cut_schedule(schedule: ShareSchedule, start_s: float, stop_s: float) -> ShareSchedule:
    """Cut a share schedule, as a processor does for a call."""
    before = [share for time_s, share in schedule if time_s <= start_s][-1:] or [0.0]
    return (start_s, before[0]), *((time_s, share) for time_s, share in schedule if start_s < time_s < stop_s)


def run_app(
    node: AppNode, frames: Frames, cuts: Sequence[float], inference: ShareSchedule = WHOLE, training: ShareSchedule = ()
) -> dict[str, list[Any]]:
    """Run an application on a stream cut by cut; return its columns and the last reply."""
    replies = []
    for start_s, stop_s in itertools.pairwise(cuts):
        schedules = [cut_schedule(schedule, start_s, stop_s) for schedule in (inference, training) if schedule]
        replies.append(node.run_stream(between(frames, start_s, stop_s), None, stop_s, *schedules))
    ended = node.finish()
    found = columns([*(reply.rows for reply in replies), ended.rows])
    found["facts"] = [*(reply.facts for reply in replies), ended.facts.last]
    found["digest"] = [ended.facts.digest]
    return found


def columns(rows: Iterable[Any]) -> dict[str, list[Any]]:
    """Put the chunks of frames and adaptations together, column by column; NaN becomes None."""
    found: dict[str, list[Any]] = {}
    for tables in rows:
        for table in ("frames", "adaptations"):
            for chunk in tables.get(table, ()):
                for name, values in chunk.items():
                    if not isinstance(values, str) and values is not None:
                        plain = np.asarray(values).tolist()
                        found.setdefault(f"{table}.{name}", []).extend(None if x != x else x for x in plain)
    return found


def spent(found: dict[str, list[Any]], purpose: str) -> float:
    return float(sum(facts.joules.get(purpose, 0.0) for facts in found["facts"]))


def member(name: str, **params: Any) -> Member:
    return Member("adaptation", name, tuple(params.items()))


def missed(found: dict[str, list[Any]]) -> list[int]:
    return [which for which, flag in enumerate(found["frames.processed"]) if not flag]


FROZEN = Member("adaptation", "frozen")
NETWORKS = {"shot": "tiny_classifier"}  # it names whole frames
ONLINE_MEMBERS = {
    f"{name} {on} {runs}": member(name, stream_batch=3, predict_on=on, training_runs=runs, **params)
    for name, params in (("tent", {}), ("adabn", {}), ("onda", {}), ("shot", {}))
    for on in ("frame", "batch")
    for runs in ("exclusive", "concurrent")
    if name == "tent" or (on, runs) in (("frame", "concurrent"), ("batch", "exclusive"))
} | {
    "steps": steps(stream_batch=3, training_runs="concurrent", episodic=True),
    "frozen": FROZEN,
    "tracking": FROZEN,
}


def made(name: str) -> AppNode:
    params: dict[str, Any] = {"domain_oracle": True, "tracks": name == "tracking"}
    if name == "steps":
        return application(ONLINE_MEMBERS[name], **params)
    return real_app(ONLINE_MEMBERS[name], network=NETWORKS.get(ONLINE_MEMBERS[name].name, "half"), **params)


INFERENCE_S, TRAINING_S = 0.65 / 6, 0.65  # 4 and 24 million multiply-accumulates
INFERENCE_J, TRAINING_J = 4.748e-3, 30.064e-3  # 1 nJ for each of them, 1 uJ for each byte
HALF = ((0.0, 0.5),)


def latencies_s(found: dict[str, list[Any]]) -> list[float]:
    return [latency / 1e3 for latency in found["frames.latency_ms"] if latency is not None]
