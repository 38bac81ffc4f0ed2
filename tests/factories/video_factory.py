"""A small video with the user's classes."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
from PIL import Image

CLASSES, HEIGHT, WIDTH, FPS, COUNT = ("sea", "beach", "boat"), 32, 48, 4, 64


def write_video(path: Path) -> Path:
    """Write a video of a boat that crosses the sea; no other file is written."""
    colours = np.array([(40, 80, 190), (220, 200, 120), (190, 30, 40)], np.uint8)
    with av.open(str(path), "w") as container:
        track = container.add_stream("libx264", rate=FPS, options={"crf": "12", "threads": "1"})
        track.width, track.height, track.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for number in range(COUNT):
            container.mux(track.encode(av.VideoFrame.from_ndarray(colours[_shown(number)], format="rgb24")))
        container.mux(track.encode())
    return path


def write_label_maps(video: Path) -> None:
    """Write the video's label maps and the names of its classes."""
    folder = video.with_name(f"{video.name}.labels")
    folder.mkdir()
    (folder / "classes.txt").write_text("\n".join(CLASSES), encoding="utf-8")
    for number in range(COUNT):
        Image.fromarray(_shown(number)).save(folder / f"gt_{number:06d}.png")


def _shown(number: int) -> npt.NDArray[np.uint8]:
    labels = np.zeros((HEIGHT, WIDTH), np.uint8)
    labels[20:] = 1
    labels[8:20, number % 36 : number % 36 + 12] = 2
    return labels
