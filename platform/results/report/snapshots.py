"""Choose and encode the snapshots of a report: the same moments for every system."""

from __future__ import annotations

import base64
import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from driftlab.datasets.frames import IGNORE
from driftlab.platform.networks.tasks.tasks import SEGMENTATION
from driftlab.platform.results.figures.plots import Style, measure, reference_label

if TYPE_CHECKING:
    import pandas as pd

MOMENTS = 6
WIDTH_LIMIT = 320  # pixels; a larger picture would only make the page heavy


@dataclass(frozen=True)
class Picture:
    """One cell of the strip; a missing picture has no source."""

    source: str | None
    note: str = ""


@dataclass(frozen=True)
class Moments:
    """Where and when snapshots were taken."""

    times_s: tuple[float, ...]
    setting: str
    device: str
    seed: int


@dataclass(frozen=True)
class Strip(Moments):
    """Frames of one device with truth and predictions of each system, at several moments."""

    rows: tuple[tuple[str, tuple[Picture, ...]], ...]  # label of the row, one picture per moment
    classes: tuple[tuple[str, str], ...]  # name and colour of each class that occurs


def strips(
    runs: pd.DataFrame,
    snapshots: pd.DataFrame,
    frames: pd.DataFrame,
    styles: Mapping[str, Style],
    unnamed_classes: Collection[str] = (),
) -> list[Strip]:
    """Make one strip per setting, of its first seed and first device that have snapshots."""
    joined = snapshots.merge(runs[["cell", "setting", "system", "seed"]], on="cell")
    found = []
    for setting in sorted(set(joined["setting"])):
        cells = runs[runs["setting"] == setting]
        strip = _strip(setting, first_stream(joined, setting), frames, styles, reference_label(cells))
        named = measure(cells) == SEGMENTATION.measure and not set(cells["workload"]) & set(unnamed_classes)
        found.append(strip if named else replace(strip, classes=()))  # the names are those of street scenes
    return found


def first_stream(joined: pd.DataFrame, setting: str) -> pd.DataFrame:
    """Return the snapshots of a setting for the first seed and device that have any."""
    here = joined[joined["setting"] == setting]
    here = here[here["seed"] == here["seed"].min()]
    return here[here["device"] == here["device"].min()]


def evenly_spaced(times_s: pd.Series, most: int) -> tuple[float, ...]:
    """Return at most `most` recorded moments, evenly spaced."""
    recorded = sorted(set(times_s))
    count = min(most, len(recorded))
    return tuple(recorded[k * len(recorded) // count] for k in range(count))


def score_notes(frames: pd.DataFrame, cell: str, device: str, times_s: Sequence[float]) -> tuple[str, ...]:
    """Return the scores of a device's frames at these moments as texts; empty where there is no score."""
    seen = frames[(frames["cell"] == cell) & (frames["device"] == device)]
    scores = seen.groupby("time_s")["score_frame"].mean().dropna()
    return tuple(f"{scores[time_s]:.2f}" if time_s in scores.index else "" for time_s in times_s)


def _strip(
    setting: str, here: pd.DataFrame, frames: pd.DataFrame, styles: Mapping[str, Style], reference: str
) -> Strip:
    times = evenly_spaced(here["time_s"], MOMENTS)
    device = str(here["device"].iloc[0])
    shown = here.drop_duplicates("time_s").set_index("time_s")
    rows = [("frame", tuple(Picture(_source(shown["image"].get(time_s), smooth=True)) for time_s in times))]
    if shown["truth"].notna().any():
        rows.append((reference, tuple(Picture(_source(shown["truth"].get(time_s))) for time_s in times)))
    for system in styles:
        own = here[here["system"] == system].set_index("time_s")
        if own.empty:
            continue
        notes = score_notes(frames, str(own["cell"].iloc[0]), device, times)
        sources = [_source(own["prediction"].get(time_s)) for time_s in times]
        rows.append((system, tuple(map(Picture, sources, notes))))
    maps = [png for column in ("truth", "prediction") for png in here[here["time_s"].isin(times)][column].dropna()]
    return Strip(times, setting, device, int(here["seed"].iloc[0]), tuple(rows), _classes(maps))


def _classes(maps: list[bytes]) -> tuple[tuple[str, str], ...]:
    """Return name and colour of the classes in label maps; empty if a colour is not in the palette."""
    from PIL import Image

    from driftlab.datasets.sheet import PALETTE
    from driftlab.datasets.streets.presets import CLASSES

    used: set[Any] = set()
    for png in maps:
        with Image.open(io.BytesIO(png)) as image:
            used |= {colour for _, colour in image.convert("RGB").getcolors(image.width * image.height) or ()}
    palette = {tuple(int(part) for part in PALETTE[label]): name for label, name in enumerate(CLASSES)}
    if used - palette.keys() - {tuple(int(part) for part in PALETTE[IGNORE])}:
        return ()
    return tuple((name, "#{:02x}{:02x}{:02x}".format(*colour)) for colour, name in palette.items() if colour in used)


def _source(png: bytes | None, smooth: bool = False) -> str | None:
    """Return a recorded picture as a data address, scaled down to the width on the page."""
    if not isinstance(png, bytes):
        return None
    from PIL import Image

    with Image.open(io.BytesIO(png)) as image:
        if image.width > WIDTH_LIMIT:
            size = (WIDTH_LIMIT, max(1, round(image.height * WIDTH_LIMIT / image.width)))
            kind = Image.Resampling.BILINEAR if smooth else Image.Resampling.NEAREST  # labels must not mix
            sink = io.BytesIO()
            image.resize(size, kind).save(sink, "PNG", optimize=True)
            png = sink.getvalue()
    return address(png, "png")


def address(content: bytes, kind: str) -> str:
    """Return a picture as a data address, so that the page needs no other file."""
    return f"data:image/{kind};base64," + base64.b64encode(content).decode()
