"""Image sheets of shifts: a sign and a street at each severity."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

from driftlab.datasets.domains.names import SEVERITIES, shift_of
from driftlab.datasets.domains.orders import Domain
from driftlab.datasets.domains.shifts import Pixels, shifted
from driftlab.datasets.frames import Stream

_TILE_PX, _TEXT_PX, _TIME_S = 64, 14, 20.0


def shift_sheet(names: Sequence[str], streams: Sequence[Stream], columns: int = 1) -> Pixels:
    """Return an image with one frame of each stream at every severity, one row per shift."""
    images = [stream.at([_TIME_S]).images[0] for stream in streams]
    rows = [_row(name, images) for name in names if not shift_of(name).picks]
    blank = np.full_like(rows[0], 255)
    rows += [blank] * (-len(rows) % columns)
    high = len(rows) // columns
    blocks = [np.concatenate(rows[start : start + high]) for start in range(0, len(rows), high)]
    return np.concatenate(blocks, axis=1)


def _row(name: str, images: Sequence[Pixels]) -> Pixels:
    tiles = []
    for severity in SEVERITIES:
        for image in images:
            drawn = shifted(image, Domain(name, severity), np.random.default_rng([severity, 46]))
            tiles.append(cv2.resize(drawn, (_TILE_PX, _TILE_PX), interpolation=cv2.INTER_NEAREST))
    strip = np.concatenate(tiles, axis=1)
    text = np.full((_TEXT_PX, strip.shape[1], 3), 255, np.uint8)
    cv2.putText(text, name, (2, _TEXT_PX - 4), cv2.FONT_HERSHEY_SIMPLEX, 0.4, (30, 30, 30), 1, cv2.LINE_AA)
    return np.pad(np.concatenate([text, strip]), ((0, 2), (0, 4), (0, 0)), constant_values=255).astype(np.uint8)
