"""Boxes: decoding from a map of centre points (CenterNet), loss, warping, encoding and drawing.

At half the resolution of the frame, an output has one channel per class with the centre probability (logits), and four
with the logarithms of the distances to the sides, so that errors are relative to the size of the box.
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
UNIT_PX = 4.0  # distance with logarithm 0
MIN_CONFIDENCE = 0.3  # of decoded centres
MIN_TARGET = 0.3  # of centre targets at the places where sides are trained
MAX_BOXES = 64  # per frame
FIELDS = 5  # numbers per box on the link: class, left, top, right, bottom
MIN_SIDE_PX = 4.0  # boxes with a shorter side are not scored: one pixel would decide over a match
_INK_PX = 1


def stack(frames: Sequence[Any]) -> npt.NDArray[np.object_]:
    """Return the boxes of frames as an object array.

    `np.array` would merge frames with equal numbers of boxes.
    """
    stack = np.empty(len(frames), dtype=object)
    for row, boxes in enumerate(frames):
        stack[row] = boxes
    return stack


def drop_small(boxes: Boxes) -> Boxes:
    """Return the boxes that are large enough to be scored."""
    kept: Boxes = boxes[np.minimum(boxes[:, 3] - boxes[:, 1], boxes[:, 4] - boxes[:, 2]) >= MIN_SIDE_PX]
    return kept


def decode(output: torch.Tensor, height: int, width: int) -> list[Boxes]:
    """Return the boxes at the peaks of each map, the most likely first."""
    from torch.nn import functional as F

    likely = output[:, :-SIDES].sigmoid()
    peak = (likely == F.max_pool2d(likely, 3, stride=1, padding=1)) & (likely > MIN_CONFIDENCE)
    maps = likely.cpu().numpy(), peak.cpu().numpy(), output[:, -SIDES:].exp().cpu().numpy() * UNIT_PX
    return [_decode_frame(*one, height, width) for one in zip(*maps, strict=True)]


def _decode_frame(likely: Floats, peak: npt.NDArray[np.bool_], sides: Floats, height: int, width: int) -> Boxes:
    kind, row, column = np.nonzero(peak)
    order = np.argsort(-likely[kind, row, column], kind="stable")[:MAX_BOXES]
    kind, row, column = kind[order], row[order], column[order]
    x, y = (column + 0.5) * STRIDE, (row + 0.5) * STRIDE
    left, top, right, bottom = sides[:, row, column]
    corners = (
        np.clip(x - left, 0, width),
        np.clip(y - top, 0, height),
        np.clip(x + right, 0, width),
        np.clip(y + bottom, 0, height),
    )
    return np.stack([kind, *corners, likely[kind, row, column]], axis=1).astype(np.float32)


def loss(output: torch.Tensor, labels: npt.NDArray[np.object_]) -> torch.Tensor | None:
    """Return the focal loss of the centres per box, plus the error of the sides around them."""
    import torch
    from torch.nn import functional as F

    if not len(labels):
        return None
    classes, (height, width) = output.shape[1] - SIDES, output.shape[2:]
    drawn = [_draw_targets(boxes, classes, height, width) for boxes in labels]
    heat, sides, weight = (torch.from_numpy(np.stack(part)).to(output.device) for part in zip(*drawn, strict=True))
    centre_logits, distances = output[:, :-SIDES], output[:, -SIDES:]
    positive = -((1 - centre_logits.sigmoid()) ** 2) * F.logsigmoid(centre_logits)
    negative = -((1 - heat) ** 4) * centre_logits.sigmoid() ** 2 * F.logsigmoid(-centre_logits)
    count = max(1, sum(len(boxes) for boxes in labels))
    centre_loss = torch.where(heat == 1, positive, negative).sum() / count
    side_loss = (F.smooth_l1_loss(distances, sides, reduction="none", beta=0.1).sum(1) * weight).sum()
    total: torch.Tensor = centre_loss + side_loss / weight.sum().clamp(min=1)
    return total


def _draw_targets(boxes: Boxes, classes: int, height: int, width: int) -> tuple[Floats, Floats, Floats]:
    """Return targets of centres, sides and weights.

    Of overlapping Gaussians the higher one sets the sides.
    """
    heat = np.zeros((classes, height, width), np.float32)
    if not len(boxes):
        return heat, np.zeros((SIDES, height, width), np.float32), np.zeros((height, width), np.float32)
    x, y = ((np.arange(size, dtype=np.float32) + 0.5) * STRIDE for size in (width, height))
    x0, y0, x1, y1 = (boxes[:, k, None] for k in range(1, 5))
    gaussians = _gaussian(y, y0, y1)[:, :, None] * _gaussian(x, x0, x1)[:, None, :]
    np.maximum.at(heat, boxes[:, 0].astype(np.intp), gaussians)
    nearest = gaussians.argmax(axis=0)
    weight = np.where(gaussians.max(axis=0) > MIN_TARGET, gaussians.max(axis=0), np.float32(0))
    distances = np.stack(
        [x - x0[nearest, 0], y[:, None] - y0[nearest, 0], x1[nearest, 0] - x, y1[nearest, 0] - y[:, None]]
    )
    sides = np.log(np.maximum(distances, 0.5) / UNIT_PX).astype(np.float32)
    return heat, sides, weight


def _gaussian(places: Floats, low: Floats, high: Floats) -> Floats:
    """Return Gaussians [boxes, cells] that are 1 at the cell closest to the centre of the box."""
    centre, deviation = (low + high) / 2, np.maximum(0.15 * (high - low), 0.4 * STRIDE)
    gaussian: Floats = np.exp(-0.5 * ((places - centre) / deviation) ** 2).astype(np.float32)
    gaussian[np.arange(len(gaussian)), np.abs(places - centre).argmin(axis=1)] = 1
    return gaussian


def mirror(boxes: Boxes, width: int) -> Boxes:
    """Return the boxes of a horizontally mirrored frame."""
    mirrored: Boxes = boxes.copy()
    mirrored[:, 1], mirrored[:, 3] = width - boxes[:, 3], width - boxes[:, 1]
    return mirrored


def warp(boxes: Boxes, source: Floats) -> Boxes:
    """Return each box at the pixels whose source is inside it.

    Boxes without such pixels have left the frame.
    """
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
    """Draw the outlines of boxes, in the colours of their classes, on a brightened copy of the image."""
    import cv2

    from driftlab.datasets.sheet import colour_of

    canvas = np.ascontiguousarray(image // 2 + 127)
    for kind, *corners in boxes[::-1, :5]:  # the most likely last, on top
        left, top, right, bottom = (round(float(corner)) for corner in corners)
        colour = tuple(int(part) for part in colour_of(int(kind)))
        cv2.rectangle(canvas, (left, top), (right - 1, bottom - 1), colour, _INK_PX)
    return canvas
