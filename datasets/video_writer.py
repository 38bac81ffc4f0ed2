"""Streams as films of one's own: an H.264 file, and the label maps beside it that `video:FILE` reads."""

from __future__ import annotations

import shutil
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory

import av
import numpy as np
from PIL import Image

from driftlab.datasets.frames import Stream, frame_times
from driftlab.errors import RequestError

QUALITY = 18  # x264's constant rate factor: a camera's, hardly to be told from the original
MAX_RATE_DENOMINATOR = 100_000  # 30000/1001 as a floating-point number becomes that fraction again
CHUNK = 64  # frames drawn at a time
KINDS = (".mp4", ".mkv", ".avi")


def save_film(stream: Stream, path: Path) -> Path:
    """Write all frames of a stream as a film, and their maps and names of classes into the folder FILE.labels.

    Both are moved into place at the end: a film that is broken off leaves nothing.
    """
    check_film(stream, path)
    labels = _labels_of(path)
    try:
        with TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
            draft = Path(folder) / path.name
            _write(stream, draft)
            _labels_of(draft).rename(labels)
            try:
                draft.rename(path)
            except BaseException:
                shutil.rmtree(labels)
                raise
    except (OSError, av.FFmpegError) as error:
        raise RequestError(
            f"Cannot write the film '{path}': {error.strerror or error}. Give a path in a folder you own."
        ) from error
    return path


def check_film(stream: Stream, path: Path) -> None:
    """Refuse a stream that no film can hold, and a path where none can be written."""
    if path.suffix not in KINDS:
        raise RequestError(f"'{path}' is no name of a film. Let it end in {', '.join(KINDS[:-1])} or {KINDS[-1]}.")
    for place in (path, _labels_of(path)):
        if place.exists():
            raise RequestError(f"'{place}' exists. Give a film another name, or remove it first.")
    if not path.parent.is_dir():
        raise RequestError(f"Cannot write the film '{path}': there is no folder '{path.parent}'. Make it first.")
    height, width = stream.size
    if height % 2 or width % 2:
        raise RequestError(
            f"'{stream.name}' has frames of {height} x {width} pixels, and H.264 needs even numbers. "
            f"Show it with height={height + height % 2} and width={width + width % 2}."
        )
    if stream.at([0.0]).labels is None:
        raise RequestError(f"'{stream.name}' has no class for each pixel, and a film can hold no other truth.")


def _labels_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.labels")


def _write(stream: Stream, path: Path) -> None:
    times_s = frame_times(stream, 0, stream.duration_s)
    labels = _labels_of(path)
    labels.mkdir()
    (labels / "classes.txt").write_text("\n".join(stream.classes) + "\n", encoding="utf-8")
    with av.open(str(path), "w") as container:
        options = {"crf": str(QUALITY), "threads": "1"}
        if path.suffix == ".avi":
            options["bf"] = "0"  # AVI has no place for the presentation times of B-frames
        rate = Fraction(stream.fps).limit_denominator(MAX_RATE_DENOMINATOR)
        track = container.add_stream("libx264", rate=rate, options=options)
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
