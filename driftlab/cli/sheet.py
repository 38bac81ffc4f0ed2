"""A contact sheet of a workload: frames above, their truth below."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from driftlab.datasets.catalogue import open_stream
from driftlab.datasets.frames import Frames, Stream
from driftlab.errors import RequestError

HEIGHT, WIDTH, COLUMNS, ROWS = 144, 256, 4, 3
FPS = 30.0
SPAN_S = 240.0
GAP, CAPTION = 4, 14
INK, PAPER = (235, 235, 235), (24, 24, 27)
# One colour per class number, apart for eyes that tell no red from green; the last is for what is unknown.
COLOURS: npt.NDArray[np.uint8] = np.array(
    [
        (110, 110, 120),
        (213, 170, 145),
        (150, 75, 50),
        (60, 150, 80),
        (120, 190, 240),
        (240, 60, 120),
        (250, 215, 50),
        (170, 200, 90),
        (20, 20, 20),
    ],
    dtype=np.uint8,
)


def draw_sheet(workload: str, seed: int, path: Path) -> None:
    """Write the picture of frames taken evenly over the first minutes."""
    stream = open_stream(
        workload, seed=seed, height=HEIGHT, width=WIDTH, fps=FPS, duration_s=None if ":" in workload else SPAN_S
    )
    count = COLUMNS * ROWS
    frames = stream.at((np.arange(count) + 0.5) * min(stream.duration_s, SPAN_S) / count)
    sheet = _sheet(stream, frames)
    try:
        sheet.save(path)
    except (OSError, ValueError) as error:
        raise RequestError(
            f"Cannot write the picture '{path}': {error}. Give a .png in a folder that exists."
        ) from None


def _sheet(stream: Stream, frames: Frames) -> Image.Image:
    layers = 1 if frames.labels is None else 2
    cell_height = CAPTION + layers * (HEIGHT + GAP)
    sheet = Image.new("RGB", (COLUMNS * (WIDTH + GAP) + GAP, ROWS * cell_height + CAPTION + 2 * GAP), PAPER)
    draw = ImageDraw.Draw(sheet)
    for index in range(len(frames)):
        row, column = divmod(index, COLUMNS)
        x, y = GAP + column * (WIDTH + GAP), GAP + row * cell_height
        draw.text((x, y), f"{frames.times_s[index]:.0f} s, scene {frames.scenes[index]}", fill=INK)
        sheet.paste(_framed(frames, index), (x, y + CAPTION))
        if frames.labels is not None:
            truth = COLOURS[np.minimum(frames.labels[index], len(COLOURS) - 1)]
            sheet.paste(Image.fromarray(truth), (x, y + CAPTION + HEIGHT + GAP))
    if frames.labels is not None:
        _legend(draw, stream.classes, ROWS * cell_height + GAP)
    return sheet


def _framed(frames: Frames, index: int) -> Image.Image:
    picture = Image.fromarray(frames.images[index])
    draw = ImageDraw.Draw(picture)
    for kind, *corners in frames.boxes[index] if frames.boxes is not None else ():
        draw.rectangle([float(corner) for corner in corners], outline=tuple(map(int, COLOURS[int(kind)])))
    return picture


def _legend(draw: ImageDraw.ImageDraw, classes: tuple[str, ...], y: int) -> None:
    x: float = GAP
    for colour, name in zip(COLOURS, classes, strict=False):
        draw.rectangle((x, y + 1, x + 10, y + 11), fill=tuple(map(int, colour)))
        draw.text((x + 14, y), name, fill=INK)
        x += 14 + draw.textlength(name) + 4 * GAP
