"""Encode the images and predictions of replies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import cv2
import numpy as np

from driftlab.datasets.sheet import PALETTE
from driftlab.platform.field.rounds import NewestSample


def prediction_document(version: int, task: str, prediction: Any) -> bytes:
    """Return a prediction (classes of pixels, boxes, or one class) and the network's version as JSON."""
    head = f'{{"version":{version},"task":"{task}","prediction":'.encode()
    array = np.asarray(prediction)
    is_map = array.ndim == 2 and array.dtype == np.uint8 and array.size > 0
    return head + (_map_document(array) if is_map else json.dumps(array.tolist()).encode()) + b"}"


def _map_document(labels: np.ndarray[Any, Any]) -> bytes:
    """Return a label map as JSON; one table look-up for all pixels is ten times as fast as `json.dumps`."""
    rows = _words(len(str(labels.max())))[labels].view(np.uint8).reshape(len(labels), -1)[:, :-1]
    return b"[[" + b"],[".join(row.tobytes() for row in rows) + b"]]"


@cache
def _words(digits: int) -> np.ndarray[Any, Any]:
    return np.array([f"{label:{digits}d}," for label in range(256)], dtype=f"S{digits + 1}")


def image_of(shown: NewestSample, kind: str) -> bytes | None:
    """Return a part of the newest sample as PNG; None for an unknown part or labels that are no map."""
    pixels = pixels_of(shown).get(kind)
    if pixels is None:
        return None
    done, data = cv2.imencode(".png", np.ascontiguousarray(pixels[..., ::-1]))
    return data.tobytes() if done else None


def pixels_of(shown: NewestSample) -> dict[str, np.ndarray[Any, Any]]:
    """Return the parts of the newest sample that are images: the frame, and label maps in colours."""
    maps = {kind: np.asarray(labels) for kind, labels in (("prediction", shown.prediction), ("truth", shown.truth))}
    found = {kind: PALETTE[labels] for kind, labels in maps.items() if labels.ndim == 2 and labels.dtype == np.uint8}
    return {"frame": np.asarray(shown.frame), **found}


def legend_of(classes: Sequence[str]) -> list[tuple[str, str]]:
    """Return each class with its colour in label maps."""
    return [(name, "#" + PALETTE[label].tobytes().hex()) for label, name in enumerate(classes)]
