"""Streams as films of one's own: an H.264 file, and the label maps beside it that `video:FILE` reads."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
from PIL import Image

from driftlab.datasets.frames import Stream, frame_times
from driftlab.errors import RequestError

QUALITY = 18  # x264's constant rate factor: a camera's, hardly to be told from the original
CHUNK = 64  # frames drawn at a time
KINDS = (".mp4", ".mkv", ".avi")


def save_film(stream: Stream, path: Path) -> Path:
    """Write all frames of a stream as a film, and their maps and names of classes into the folder FILE.labels."""
    labels = Path(f"{path}.labels")
    if path.suffix not in KINDS:
        raise RequestError(f"'{path}' is no name of a film. Let it end in {', '.join(KINDS[:-1])} or {KINDS[-1]}.")
    for place in (path, labels):
        if place.exists():
            raise RequestError(f"'{place}' exists. Give a film another name, or remove it first.")
    if stream.at([0.0]).labels is None:
        raise RequestError(f"'{stream.name}' has no class for each pixel, and a film can hold no other truth.")
    try:
        labels.mkdir()
        (labels / "classes.txt").write_text("\n".join(stream.classes) + "\n", encoding="utf-8")
        _write(stream, path, labels)
    except OSError as error:
        raise RequestError(
            f"Cannot write the film '{path}': {error.strerror or error}. Give a path in a folder you own."
        ) from error
    return path


def _write(stream: Stream, path: Path, labels: Path) -> None:
    times_s = frame_times(stream, 0, stream.duration_s)
    with av.open(str(path), "w") as container:
        options = {"crf": str(QUALITY), "threads": "1"}
        track = container.add_stream("libx264", rate=round(stream.fps), options=options)
        track.height, track.width = stream.size
        track.pix_fmt = "yuv420p"
        for start in range(0, len(times_s), CHUNK):
            frames = stream.at(times_s[start : start + CHUNK])
            assert frames.labels is not None
            for row, (picture, truth) in enumerate(zip(frames.images, frames.labels, strict=True)):
                shown = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
                container.mux(track.encode(shown))
                Image.fromarray(truth).save(labels / f"gt_{start + row:06d}.png")
        container.mux(track.encode())
