"""A short video of one stream with frame, truth and predictions side by side, animated on the page.

Each tile is one wide picture with all moments; the style sheet moves all tiles in step, without a script, and not at
all if the browser is set to reduced motion.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from driftlab.platform.results.figures.plots import StyleMap, reference_label
from driftlab.platform.results.report.snapshots import Moments, address, evenly_spaced, first_stream, score_notes
from driftlab.platform.results.tables.columns import LIVE_SCORE

if TYPE_CHECKING:
    import pandas as pd

MOMENTS = 24
TILE_PX = 192  # width of one moment; a larger picture would only make the page heavy


@dataclass(frozen=True)
class Tile:
    """All moments of one row from left to right, with a note for each."""

    label: str
    source: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Video(Moments):
    """The stream of one device with the predictions of several systems."""

    aspect: float  # width over height of a moment
    tiles: tuple[Tile, ...]


def make_video(runs: pd.DataFrame, snapshots: pd.DataFrame, frames: pd.DataFrame, styles: StyleMap) -> Video | None:
    """Return the video of the first setting with several moments, if possible one with truth."""
    joined = snapshots.merge(runs[["cell", "setting", "system", "seed", "bound", LIVE_SCORE]], on="cell")
    streams = [first_stream(joined, setting) for setting in sorted(set(joined["setting"]))]
    streams = [here for here in streams if here["time_s"].nunique() > 1]
    if not streams:
        return None
    here = next((stream for stream in streams if stream["truth"].notna().any()), streams[0])
    times = evenly_spaced(here["time_s"], MOMENTS)
    size = (TILE_PX, max(1, round(TILE_PX * int(here["height"].iloc[0]) / int(here["width"].iloc[0]))))
    shown = here.drop_duplicates("time_s").set_index("time_s")
    tiles = [Tile("frame", _sprite(shown["image"], times, size, smooth=True), ())]
    if shown["truth"].notna().any():
        label = reference_label(runs[runs["setting"] == here["setting"].iloc[0]])
        tiles.append(Tile(label, _sprite(shown["truth"], times, size), ()))
    for system in _shown_systems(here, styles):
        own = here[here["system"] == system].set_index("time_s")
        notes = score_notes(frames, str(own["cell"].iloc[0]), str(here["device"].iloc[0]), times)
        tiles.append(Tile(system, _sprite(own["prediction"], times, size), notes))
    first = here.iloc[0]
    return Video(times, first["setting"], first["device"], int(first["seed"]), size[0] / size[1], tuple(tiles))


def _shown_systems(here: pd.DataFrame, styles: StyleMap) -> list[str]:
    """Return the method with the highest live score and the system without adaptation."""
    systems = here.drop_duplicates("system").set_index("system")
    systems = systems.loc[[name for name in styles if name in systems.index]]
    methods = systems[systems["bound"].isna()]
    best = methods[LIVE_SCORE].astype(float).fillna(-1.0).idxmax() if len(methods) else None
    return [*([str(best)] if best is not None else []), *systems[systems["bound"] == "no_adaptation"].index]


def _sprite(
    pictures: Mapping[float, bytes | None], times: Sequence[float], size: tuple[int, int], smooth: bool = False
) -> str:
    """Join the moments of one row to a wide picture; a missing moment stays grey."""
    from PIL import Image

    wide = Image.new("RGB", (size[0] * len(times), size[1]), "#80868f")
    for place, time_s in enumerate(times):
        content = pictures.get(time_s)
        if isinstance(content, bytes):
            with Image.open(io.BytesIO(content)) as image:
                kind = Image.Resampling.BILINEAR if smooth else Image.Resampling.NEAREST  # labels must not mix
                wide.paste(image.convert("RGB").resize(size, kind), (size[0] * place, 0))
    wide.save(sink := io.BytesIO(), "WEBP", quality=80, lossless=not smooth)
    return address(sink.getvalue(), "webp")
