"""A clip of one stream: frame, truth, best method and no adaptation, with scores over time.

It shows the whole session in ten seconds, as a WebM video inside the page, which every browser plays offline.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from driftlab.platform.results.figures import plots
from driftlab.platform.results.figures.plots import StyleMap
from driftlab.platform.results.figures.svg import panel
from driftlab.platform.results.report.snapshots import Moments, evenly_spaced, first_stream
from driftlab.platform.results.tables.columns import LIVE_SCORE

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from PIL.Image import Image

    from driftlab.platform.results.figures.base import View

LENGTH_S = 10.0
MOMENTS = 80  # 8 pictures per second
TILE_PX = 288  # longer side of one moment
COLUMNS = 2  # tiles in a row, which a phone still shows
GREY = "#80868f"  # of a missing moment
HEIGHT = 250  # of the scores
BITEXACT = 1 << 23  # the same pictures give the same bytes
CODEC = {"crf": "34", "b": "0", "cpu-used": "4", "g": "999"}  # 0.1 to 0.4 MB


@dataclass(frozen=True)
class Clip(Moments):
    """A video of the stream of one device; its tiles are ordered in rows of two."""

    aspect: float  # width over height
    tiles: tuple[str, ...]
    source: str
    scores: str  # SVG element; empty without scores


def make_clip(runs: pd.DataFrame, snapshots: pd.DataFrame, frames: pd.DataFrame, styles: StyleMap) -> Clip | None:
    """Return the clip of the first setting with several moments, if possible one with truth."""
    joined = snapshots.merge(runs[["cell", "setting", "system", "seed", "bound", LIVE_SCORE]], on="cell")
    streams = [first_stream(joined, setting) for setting in sorted(set(joined["setting"]))]
    streams = [here for here in streams if here["time_s"].nunique() > 1]
    if not streams:
        return None
    here = next((stream for stream in streams if stream["truth"].notna().any()), streams[0])
    times = evenly_spaced(here["time_s"], MOMENTS)
    shown = here.drop_duplicates("time_s").set_index("time_s")
    systems = _shown_systems(here, styles)
    tiles: dict[str, Mapping[float, Any]] = {"frame": shown["image"]}
    if shown["truth"].notna().any():
        tiles[plots.reference_label(runs[runs["setting"] == here["setting"].iloc[0]])] = shown["truth"]
    tiles |= {system: here[here["system"] == system].set_index("time_s")["prediction"] for system in systems}
    first = here.iloc[0]
    scale = TILE_PX / max(int(first["height"]), int(first["width"]))
    size = (2 * round(scale * int(first["width"]) / 2), 2 * round(scale * int(first["height"]) / 2))
    pictures = [_composed([tile.get(time_s) for tile in tiles.values()], size) for time_s in times]
    seen = frames[frames["cell"].isin(here["cell"]) & (frames["device"] == first["device"])]
    return Clip(
        times,
        first["setting"],
        first["device"],
        int(first["seed"]),
        pictures[0].width / pictures[0].height,
        tuple(tiles),
        "data:video/webm;base64," + base64.b64encode(encode(pictures)).decode(),
        _scores(seen, runs, {system: styles[system] for system in systems}),
    )


def _shown_systems(here: pd.DataFrame, styles: StyleMap) -> list[str]:
    """Return the method with the highest live score and the system without adaptation."""
    systems = here.drop_duplicates("system").set_index("system")
    systems = systems.loc[[name for name in styles if name in systems.index]]
    methods = systems[systems["bound"].isna()]
    best = methods[LIVE_SCORE].astype(float).fillna(-1.0).idxmax() if len(methods) else None
    return [*([str(best)] if best is not None else []), *systems[systems["bound"] == "no_adaptation"].index[:1]]


def _composed(tiles: Sequence[bytes | None], size: tuple[int, int]) -> Image:
    """Join the tiles of one moment in rows; all but the first are labels, which must not mix."""
    from PIL import Image

    whole = Image.new("RGB", (COLUMNS * size[0], -(-len(tiles) // COLUMNS) * size[1]), GREY)
    for place, content in enumerate(tiles):
        if isinstance(content, bytes):
            with Image.open(io.BytesIO(content)) as image:
                kind = Image.Resampling.NEAREST if place else Image.Resampling.BILINEAR
                corner = (place % COLUMNS * size[0], place // COLUMNS * size[1])
                whole.paste(image.convert("RGB").resize(size, kind), corner)
    return whole


def encode(pictures: Sequence[Image]) -> bytes:
    """Encode pictures of even width and height as a WebM video (VP9) of ten seconds."""
    from fractions import Fraction

    import av

    sink = io.BytesIO()
    with av.open(sink, "w", format="webm", options={"fflags": "+bitexact"}) as container:
        stream = container.add_stream("libvpx-vp9", rate=Fraction(len(pictures)) / Fraction(LENGTH_S), options=CODEC)
        stream.width, stream.height, stream.pix_fmt = *pictures[0].size, "yuv420p"
        stream.codec_context.thread_count = 1
        stream.codec_context.flags |= BITEXACT
        for picture in pictures:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.asarray(picture), format="rgb24")))
        container.mux(stream.encode())
    return sink.getvalue()


def _scores(frames: pd.DataFrame, runs: pd.DataFrame, styles: StyleMap) -> str:
    """Draw the live scores of the shown stream; return an empty text if there are none."""
    scored = frames.dropna(subset=[LIVE_SCORE])
    return panel("clip", "live scores of the clip", partial(_draw, scored, runs, styles), HEIGHT) if len(scored) else ""


def _draw(frames: pd.DataFrame, runs: pd.DataFrame, styles: StyleMap, axis: Axes) -> None:
    plots.accuracy(axis, runs[runs["cell"].isin(frames["cell"])], frames, styles)


def show_clip(view: View) -> None:
    """Show the clip of a run in a notebook, or print that the run has too few snapshots for one."""
    from IPython.display import HTML, Markdown, display

    frames, snapshots = view.tables.frame("frames"), view.tables.frame("snapshots")
    clip = make_clip(view.runs, snapshots, frames, view.styles)
    if clip is None:
        display(Markdown("This run has no snapshots of several moments: set `snapshots` to 24 or more."))
        return
    said = f"{clip.setting}, {clip.device}, seed {clip.seed}; row by row: {', '.join(clip.tiles)}"
    player = f'<video controls loop muted width="{COLUMNS * TILE_PX}" src="{clip.source}"></video>'
    display(HTML(f"<figure>{player}<figcaption>{html.escape(said)}</figcaption></figure>"))
