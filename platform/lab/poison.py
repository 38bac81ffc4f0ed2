"""Poison the future of a cell: rows before the poison stay equal if members use the past only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from driftlab.datasets.frames import Frames
from driftlab.platform.results.tables.read import Run
from driftlab.platform.results.tables.schema import host_columns
from driftlab.platform.sim.nodes.camera import CameraNode
from driftlab.platform.world import load_csv
from driftlab.platform.world.load import Load

if TYPE_CHECKING:
    import pandas as pd

SENSE_HZ = 2.0  # of the load, in cells whose future is poisoned
ENDS: dict[str, Callable[[pd.DataFrame], pd.Series[float]]] = {  # by table: when the content of a row was complete
    "frames": lambda rows: rows["time_s"] + rows["latency_ms"] / 1000,
    "transfers": lambda rows: rows["arrive_s"],
    "updates": lambda rows: rows["arrive_s"],
    "adaptations": lambda rows: rows["end_s"],
    "shares": lambda rows: rows["time_s"] + rows["window_s"],
    "predictions": lambda rows: rows["time_s"],
    "loads": lambda rows: rows["time_s"] + 1 / SENSE_HZ,  # with the true load until the next reading
}


class PoisonedStream:
    """A stream that shows noise, other truth and other domains from a time on."""

    def __init__(self, stream: Any, poison_s: float) -> None:
        self._stream, self._poison_s = stream, poison_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def at(self, times_s: Any) -> Frames:
        """Return the frames of some times."""
        frames: Frames = self._stream.at(times_s)
        late = frames.times_s >= self._poison_s
        images, scenes = frames.images.copy(), frames.scenes.copy()
        rng = np.random.default_rng(np.round(frames.times_s[late] * 1000).astype(int))
        images[late] = rng.integers(0, 256, images[late].shape, np.uint8)
        scenes[late] += 50
        if frames.classes is None:  # labels per pixel and boxes are the truth, and differ with the scene
            return replace(frames, images=images, scenes=scenes)
        classes = frames.classes.copy()
        classes[late] = (classes[late] + 1) % len(self._stream.classes)
        return replace(frames, images=images, scenes=scenes, classes=classes)


@contextmanager
def poisoned(poison_s: float) -> Iterator[None]:
    """Poison the frames of cameras and the load of other programs from a time on, in this process."""
    open_stream, load_of = CameraNode._open, load_csv.load_of

    def poisoned_stream(self: CameraNode, scale: int) -> PoisonedStream:
        return PoisonedStream(open_stream(self, scale), poison_s)

    def poisoned_load(*args: Any) -> Load | None:
        load = load_of(*args)
        if load is None:
            return None
        before = [step for step in load.steps if step.time_s < poison_s]
        last = replace(before[-1], time_s=poison_s, cpu=1 - before[-1].cpu, memory=0.9 - before[-1].memory / 2)
        return replace(load, steps=(*before, last))

    with patch.object(CameraNode, "_open", poisoned_stream), patch.object(load_csv, "load_of", poisoned_load):
        yield


def past_of(run: Run, table: str, system: str, until_s: float) -> pa.Table:
    """Return the rows of a system that were complete before a time, without the columns of the host."""
    rows, frame = run.table(table), run.frame(table)
    before = (frame["cell"].str.split("/").str[0] == system) & (ENDS[table](frame) < until_s) if len(frame) else []
    columns = [name for name in rows.column_names if name not in host_columns(table)]
    return rows.select(columns).filter(pa.array(before, pa.bool_()))
