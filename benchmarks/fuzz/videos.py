"""Write a short video with label maps."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
from PIL import Image

CLASSES, FRAMES, HEIGHT, WIDTH = ("sea", "boat"), 8, 32, 48


def write_video(path: Path) -> Path:
    """Write a video of a boat at sea, with a folder of label maps and the names of their classes."""
    labels = path.with_name(f"{path.name}.labels")
    labels.mkdir()
    (labels / "classes.txt").write_text("\n".join(CLASSES), encoding="utf-8")
    with av.open(str(path), "w") as container:
        track = container.add_stream("libx264", rate=4, options={"threads": "1"})
        track.width, track.height, track.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for number in range(FRAMES):
            shown = np.zeros((HEIGHT, WIDTH), np.uint8)
            shown[8:20, number : number + 12] = 1
            colours = np.array([(40, 80, 190), (190, 30, 40)], np.uint8)[shown]
            container.mux(track.encode(av.VideoFrame.from_ndarray(colours, format="rgb24")))
            Image.fromarray(shown).save(labels / f"gt_{number:06d}.png")
        container.mux(track.encode())
    return path
