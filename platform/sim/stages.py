"""The memory of a phase on the device by stage, as ElasticDNN's Figure 7 has it.

The whole network is in memory from the generation of a surrogate to its own update; the paper loads and updates it
layer by layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from driftlab.platform.core.records import ModelCost, TaskCost, Trained
from driftlab.platform.scaling.base import FEEDBACK
from driftlab.platform.world.cost import memory_bytes

COLOURS = 3  # bytes of a pixel


def stage_rows(
    cost: ModelCost, task: TaskCost, trained: Trained, frame_pixels: int, time_s: float
) -> Mapping[str, list[Any]]:
    """Return a row per stage of a phase; without a cut there is no network to generate or update.

    `retrain` is the memory that the phase is charged.
    """
    samples, chosen = trained.frames * frame_pixels * COLOURS, trained.selection
    stages = {"load": (samples, 0), "retrain": (samples, task.memory_bytes), "complete": (0, 0)}
    if chosen is not None:
        passing = max((layer.input_bytes + layer.output_bytes for layer in chosen.others), default=0)
        updating = sum(layer.input_bytes for layer in trained.surgery if layer.name == FEEDBACK)
        stages = {
            "load": (samples, 0),
            "generate": (samples, chosen.kept_bytes + passing),
            "retrain": stages["retrain"],
            "complete": (0, chosen.kept_bytes),
            "update": (0, chosen.kept_bytes + updating),
        }
    return {
        "time_s": [time_s] * len(stages),
        "stage": list(stages),
        "network_bytes": [memory_bytes(cost)] * len(stages),
        "samples_bytes": [held for held, _ in stages.values()],
        "memory_bytes": [more for _, more in stages.values()],
    }
