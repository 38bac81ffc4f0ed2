"""Optical flow between frames, and warping of label maps."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

Gray = npt.NDArray[np.uint8]
Map = npt.NDArray[np.float32]  # [height, width, 2]: the source position of each pixel, x then y


def gray(image: npt.NDArray[np.uint8]) -> Gray:
    """Convert an RGB frame to the grey image for optical flow."""
    return np.asarray(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), dtype=np.uint8)


def flow(now: Gray, before: Gray) -> Map:
    """Return the offset in `before` of each pixel of `now`; 0 in an unchanged neighbourhood."""
    window = max(9, round(now.shape[0] / 8)) | 1  # odd; 64 pixels for 512 in the paper
    unfilled, flags = np.zeros((*now.shape, 2), dtype=np.float32), cv2.OPTFLOW_FARNEBACK_GAUSSIAN
    offsets = cv2.calcOpticalFlowFarneback(now, before, unfilled, 0.5, 3, window, 5, 5, 1.1, flags)
    unchanged = cv2.erode((now == before).astype(np.uint8), np.ones((window, window), np.uint8))
    offsets[unchanged == 1] = 0  # near the border Farneback returns almost a pixel between equal images
    return np.asarray(offsets, np.float32)


def identity(height: int, width: int) -> Map:
    """Return the map in which each pixel is its own source."""
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([x, y], axis=-1).astype(np.float32)


def compose(offsets: Map, before: Map) -> Map:
    """Return the map of this frame: one step of flow to the previous frame, then the map of that frame."""
    at = identity(*offsets.shape[:2]) + offsets
    return np.asarray(cv2.remap(before, at[..., 0], at[..., 1], cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE))


def warp(labels: Gray, source: Map) -> Gray:
    """Warp labels along a map by nearest neighbour, which never mixes labels."""
    warped = cv2.remap(labels, source[..., 0], source[..., 1], cv2.INTER_NEAREST, borderMode=cv2.BORDER_REPLICATE)
    return np.asarray(warped, dtype=np.uint8)
