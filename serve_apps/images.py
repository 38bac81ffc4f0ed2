"""Encode the images and predictions of replies."""

from __future__ import annotations

import json
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
    image = {"frame": shown.frame, "prediction": shown.prediction, "truth": shown.truth}.get(kind)
    if image is None:
        return None
    if kind != "frame":
        labels = np.asarray(image)
        if labels.ndim != 2 or labels.dtype != np.uint8:
            return None
        image = PALETTE[labels]
    done, data = cv2.imencode(".png", np.ascontiguousarray(np.asarray(image)[..., ::-1]))
    return data.tobytes() if done else None
