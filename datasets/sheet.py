"""Contact sheets: frames with their ground truth below, in the colours of the reports."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

from driftlab.datasets.frames import IGNORE, Frames, Stream, Times
from driftlab.errors import RequestError

Pixels = npt.NDArray[np.uint8]

_FIRST_COLOURS = (
    (128, 64, 128),  # road
    (244, 120, 220),  # sidewalk
    (125, 120, 115),  # building
    (45, 120, 45),  # vegetation
    (110, 170, 220),  # sky
    (220, 30, 60),  # person
    (30, 40, 170),  # car
    (170, 220, 120),  # terrain
)
_TILE_WIDTH_PX, _TEXT_PX, _GAP_PX, _COLUMNS = 256, 20, 6, 4
_PAPER, _INK = 255, (30, 30, 30)


def _build_palette() -> Pixels:
    """Return fixed colours for the first classes, distinct hues for the others, and black for IGNORE."""
    numbers = np.arange(256)
    hues = (numbers * 0.618034) % 1 * 180
    hsv = np.stack([hues, 140 + 90 * (numbers % 2), 230 - 40 * (numbers % 3)], axis=1).astype(np.uint8)
    palette = np.asarray(cv2.cvtColor(hsv[None], cv2.COLOR_HSV2RGB)[0], np.uint8)
    palette[: len(_FIRST_COLOURS)] = _FIRST_COLOURS
    palette[IGNORE] = 0
    palette.flags.writeable = False
    return palette


PALETTE: Pixels = _build_palette()  # [256, 3] RGB of each label value


def colour_of(kind: int) -> Pixels:
    """Return the colour of a class; colours repeat after 255 classes, and an unknown class is black."""
    colour: Pixels = PALETTE[kind % IGNORE if kind >= 0 else IGNORE]
    return colour


def contact_sheet(stream: Stream, times_s: Times | Sequence[float]) -> Pixels:
    """Return an image of the frames at these times, their ground truth, and a legend of the classes."""
    frames = stream.at(times_s)
    if not len(frames):
        raise RequestError("A contact sheet needs at least one time.")
    tiles = [_tile(frames[row], stream.classes) for row in range(len(frames))]
    columns = min(_COLUMNS, len(tiles))
    blank = np.full_like(tiles[0], _PAPER)
    tiles += [blank] * (-len(tiles) % columns)
    rows = [np.concatenate(tiles[start : start + columns], axis=1) for start in range(0, len(tiles), columns)]
    if frames.labels is not None:
        rows.append(_legend(stream.classes, rows[0].shape[1]))
    return np.concatenate(rows)


def _tile(frame: Frames, classes: Sequence[str]) -> Pixels:
    height, width = frame.images.shape[1:3]
    size = (_TILE_WIDTH_PX, max(1, round(height * _TILE_WIDTH_PX / width)))
    parts = [_text(f"{frame.times_s[0]:.1f} s   scene {frame.scenes[0]}", _TILE_WIDTH_PX)]
    parts.append(np.asarray(cv2.resize(frame.images[0], size, interpolation=cv2.INTER_AREA), np.uint8))
    if frame.labels is not None:
        truth = PALETTE[cv2.resize(frame.labels[0], size, interpolation=cv2.INTER_NEAREST)]
        for _, *corners in frame.boxes[0] if frame.boxes is not None else ():
            left, top, right, bottom = (round(float(corner) * _TILE_WIDTH_PX / width) for corner in corners)
            cv2.rectangle(truth, (left, top), (right - 1, bottom - 1), (255, 255, 255), 1)
        parts.append(truth)
    if frame.classes is not None:
        parts.append(_text(classes[int(frame.classes[0])], _TILE_WIDTH_PX))
    return np.pad(np.concatenate(parts), ((0, _GAP_PX), (_GAP_PX // 2, _GAP_PX // 2), (0, 0)), constant_values=_PAPER)


def _text(words: str, width: int, colour: Pixels | None = None) -> Pixels:
    strip = np.full((_TEXT_PX, width, 3), _PAPER, np.uint8)
    left = 2
    if colour is not None:
        strip[4:-4, 4:18] = colour
        left = 22
    cv2.putText(strip, words, (left, _TEXT_PX - 6), cv2.FONT_HERSHEY_SIMPLEX, 0.42, _INK, 1, cv2.LINE_AA)
    return strip


def _legend(classes: Sequence[str], width: int) -> Pixels:
    per_row = max(1, width // 130)
    entries = [_text(name, width // per_row, PALETTE[label]) for label, name in enumerate(classes)]
    entries += [_text("", width // per_row)] * (-len(entries) % per_row)
    rows = [np.concatenate(entries[start : start + per_row], axis=1) for start in range(0, len(entries), per_row)]
    legend = np.concatenate(rows)
    return np.pad(legend, ((0, 0), (0, width - legend.shape[1]), (0, 0)), constant_values=_PAPER)


def save_png(picture: Pixels, path: str | Path) -> Path:
    """Write an RGB array to a PNG file and return its path."""
    target, buffer = Path(path), io.BytesIO()
    Image.fromarray(picture).save(buffer, format="PNG")
    try:
        target.write_bytes(buffer.getvalue())
    except OSError as error:
        raise RequestError(
            f"Cannot write the picture '{target}': {error.strerror}. Give a path in a folder you own."
        ) from error
    return target
