"""Boxes: read from a map of centre points, trained against one, moved and drawn.

An output has, at half the resolution of the frame, one channel per class with the probability that an object of that
class has its centre here, and four with the distances of its sides (CenterNet; logarithms of distances, so that an
error is relative to the size).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from driftlab.errors import WireError
from driftlab.platform.core import wire

if TYPE_CHECKING:
    import torch

Boxes = npt.NDArray[np.float32]  # [m, 5 or 6]
Floats = npt.NDArray[np.float32]
STRIDE = 2  # pixels of the frame per cell of the map
SIDES = 4  # channels: left, top, right, bottom
UNIT_PX = 4.0  # the distance whose logarithm is 0
MIN_CONFIDENCE = 0.3  # less likely centres are not reported
MIN_TARGET = 0.3  # the sides are trained where the target around a centre is higher than this
MAX_BOXES = 64  # boxes reported per frame
FIELDS = 5  # numbers per box on the link: class, left, top, right, bottom
MIN_SIDE_PX = 4.0  # boxes with a shorter side are not scored: an error of one pixel would decide over them
_INK_PX = 1


def stack(found: Sequence[Any]) -> npt.NDArray[np.object_]:
    """Put the boxes of several frames into one object array; NumPy would merge frames with equal numbers of boxes."""
    stack = np.empty(len(found), dtype=object)
    for row, boxes in enumerate(found):
        stack[row] = boxes
    return stack


def drop_small(boxes: Boxes) -> Boxes:
    """Drop boxes that are too small to be scored."""
    kept: Boxes = boxes[np.minimum(boxes[:, 3] - boxes[:, 1], boxes[:, 4] - boxes[:, 2]) >= MIN_SIDE_PX]
    return kept


def decode(output: torch.Tensor, height: int, width: int) -> list[Boxes]:
    """Report the peaks of the map, the most likely first."""
    from torch.nn import functional as F

    likely = output[:, :-SIDES].sigmoid()
    peak = (likely == F.max_pool2d(likely, 3, stride=1, padding=1)) & (likely > MIN_CONFIDENCE)
    maps = likely.cpu().numpy(), peak.cpu().numpy(), output[:, -SIDES:].exp().cpu().numpy() * UNIT_PX
    return [_read(*one, height, width) for one in zip(*maps, strict=True)]


def _read(likely: Floats, peak: npt.NDArray[np.bool_], sides: Floats, height: int, width: int) -> Boxes:
    kind, row, column = np.nonzero(peak)
    surest = np.argsort(-likely[kind, row, column], kind="stable")[:MAX_BOXES]
    kind, row, column = kind[surest], row[surest], column[surest]
    x, y = (column + 0.5) * STRIDE, (row + 0.5) * STRIDE
    left, top, right, bottom = sides[:, row, column]
    corners = (
        np.clip(x - left, 0, width),
        np.clip(y - top, 0, height),
        np.clip(x + right, 0, width),
        np.clip(y + bottom, 0, height),
    )
    return np.stack([kind, *corners, likely[kind, row, column]], axis=1).astype(np.float32)


def loss(output: torch.Tensor, answers: npt.NDArray[np.object_]) -> torch.Tensor | None:
    """Add the focal loss of the centres, per box, and the error of the sides around them."""
    import torch
    from torch.nn import functional as F

    if not len(answers):
        return None
    classes, (height, width) = output.shape[1] - SIDES, output.shape[2:]
    drawn = [_targets(boxes, classes, height, width) for boxes in answers]
    heat, sides, weight = (torch.from_numpy(np.stack(part)).to(output.device) for part in zip(*drawn, strict=True))
    guess, far = output[:, :-SIDES], output[:, -SIDES:]
    missed = -((1 - guess.sigmoid()) ** 2) * F.logsigmoid(guess)
    invented = -((1 - heat) ** 4) * guess.sigmoid() ** 2 * F.logsigmoid(-guess)
    count = max(1, sum(len(boxes) for boxes in answers))
    middles = torch.where(heat == 1, missed, invented).sum() / count
    off = (F.smooth_l1_loss(far, sides, reduction="none", beta=0.1).sum(1) * weight).sum()
    total: torch.Tensor = middles + off / weight.sum().clamp(min=1)
    return total


def _targets(boxes: Boxes, classes: int, height: int, width: int) -> tuple[Floats, Floats, Floats]:
    """Draw a Gaussian around each centre; where Gaussians overlap, the higher one gives the sides."""
    heat = np.zeros((classes, height, width), np.float32)
    if not len(boxes):
        return heat, np.zeros((SIDES, height, width), np.float32), np.zeros((height, width), np.float32)
    x, y = ((np.arange(size, dtype=np.float32) + 0.5) * STRIDE for size in (width, height))
    x0, y0, x1, y1 = (boxes[:, k, None] for k in range(1, 5))
    bumps = _bump(y, y0, y1)[:, :, None] * _bump(x, x0, x1)[:, None, :]
    np.maximum.at(heat, boxes[:, 0].astype(np.intp), bumps)
    nearest = bumps.argmax(axis=0)
    weight = np.where(bumps.max(axis=0) > MIN_TARGET, bumps.max(axis=0), np.float32(0))
    far = np.stack([x - x0[nearest, 0], y[:, None] - y0[nearest, 0], x1[nearest, 0] - x, y1[nearest, 0] - y[:, None]])
    sides = np.log(np.maximum(far, 0.5) / UNIT_PX).astype(np.float32)
    return heat, sides, weight


def _bump(places: Floats, low: Floats, high: Floats) -> Floats:
    """Return a Gaussian that is 1 at the cell closest to each centre: [boxes, cells]."""
    middle, reach = (low + high) / 2, np.maximum(0.15 * (high - low), 0.4 * STRIDE)
    bump: Floats = np.exp(-0.5 * ((places - middle) / reach) ** 2).astype(np.float32)
    bump[np.arange(len(bump)), np.abs(places - middle).argmin(axis=1)] = 1
    return bump


def mirror(boxes: Boxes, width: int) -> Boxes:
    """Mirror the boxes of a frame horizontally."""
    turned: Boxes = boxes.copy()
    turned[:, 1], turned[:, 3] = width - boxes[:, 3], width - boxes[:, 1]
    return turned


def warp(boxes: Boxes, source: Floats) -> Boxes:
    """Move each box to the pixels that come from inside it; a box without such pixels has left the frame."""
    from_x, from_y = source[..., 0], source[..., 1]
    moved = []
    for box in boxes:
        inside = (from_x >= box[1] - 0.5) & (from_x < box[3] - 0.5) & (from_y >= box[2] - 0.5) & (from_y < box[4] - 0.5)
        rows, columns = np.flatnonzero(inside.any(axis=1)), np.flatnonzero(inside.any(axis=0))
        if len(rows):
            moved.append((box[0], columns[0], rows[0], columns[-1] + 1, rows[-1] + 1))
    return np.array(moved, dtype=np.float32).reshape(-1, 5)


def pack(boxes: Boxes) -> bytes:
    """Encode boxes for the link, without their confidence."""
    return wire.pack(np.ascontiguousarray(boxes[:, :FIELDS], dtype="<f4").tobytes())


def unpack(packed: bytes, height: int, width: int) -> Boxes:
    """Decode boxes of a frame; refuse damaged bytes, and more boxes than the frame has pixels."""
    box_bytes = FIELDS * np.dtype("<f4").itemsize
    body = wire.unpack(packed, height * width * box_bytes)
    if len(body) % box_bytes:
        raise WireError(f"torn: {len(body)} bytes are no boxes of {box_bytes} bytes each")
    boxes: Boxes = np.frombuffer(body, dtype="<f4").reshape(-1, FIELDS)
    if not np.isfinite(boxes).all() or (boxes[:, 0] < 0).any():
        raise WireError("torn: the boxes hold numbers that are not finite, or classes below 0")
    return boxes


def draw(boxes: Boxes, image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Draw the outline of every box in its class's colour on a pale copy of the picture."""
    import cv2

    from driftlab.datasets.sheet import colour_of

    canvas = np.ascontiguousarray(image // 2 + 127)
    for kind, *corners in boxes[::-1, :5]:  # the most likely last, on top
        left, top, right, bottom = (round(float(corner)) for corner in corners)
        colour = tuple(int(part) for part in colour_of(int(kind)))
        cv2.rectangle(canvas, (left, top), (right - 1, bottom - 1), colour, _INK_PX)
    return canvas
