"""Write streams as videos: an H.264 file and label maps, which `video:FILE` reads."""

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

QUALITY = 18  # constant rate factor of x264: visually lossless, as a camera records
MAX_RATE_DENOMINATOR = 100_000  # converts the floating-point number of 30000/1001 back to this fraction
CHUNK = 64  # frames rendered at a time
KINDS = (".mp4", ".mkv", ".avi")


def save_video(stream: Stream, path: Path) -> Path:
    """Write a stream to a video file, and label maps and class names to the folder FILE.labels.

    Both are moved into place at the end, so an interrupted call leaves no files.
    """
    check_video(stream, path)
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
            f"Cannot write the video '{path}': {error.strerror or error}. Use a path in a writable folder."
        ) from error
    return path


def check_video(stream: Stream, path: Path) -> None:
    """Raise RequestError for a stream that cannot be written as a video, and for an unusable path."""
    if path.suffix not in KINDS:
        kinds = f"{', '.join(KINDS[:-1])} or {KINDS[-1]}"
        raise RequestError(f"'{path}' is not the name of a video file. Use a name that ends in {kinds}.")
    for place in (path, _labels_of(path)):
        if place.exists():
            raise RequestError(f"'{place}' exists already. Use another name, or delete it.")
    if not path.parent.is_dir():
        raise RequestError(f"Cannot write the video '{path}': folder '{path.parent}' does not exist. Create it.")
    height, width = stream.size
    if height % 2 or width % 2:
        raise RequestError(
            f"'{stream.name}' has frames of {height} x {width} pixels, but H.264 requires even numbers. "
            f"Use height={height + height % 2} and width={width + width % 2}."
        )
    if stream.at([0.0]).labels is None:
        raise RequestError(f"'{stream.name}' has no label maps, which videos require. Use a street workload.")


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
            options["bf"] = "0"  # AVI cannot store the presentation times of B-frames
        rate = Fraction(stream.fps).limit_denominator(MAX_RATE_DENOMINATOR)
        track = container.add_stream("libx264", rate=rate, options=options)
        track.height, track.width = stream.size
        track.pix_fmt = "yuv420p"
        for start in range(0, len(times_s), CHUNK):
            frames = stream.at(times_s[start : start + CHUNK])
            assert frames.labels is not None
            for row, (image, truth) in enumerate(zip(frames.images, frames.labels, strict=True)):
                frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
                container.mux(track.encode(frame))
                Image.fromarray(truth).save(labels / f"gt_{start + row:06d}.png")
        container.mux(track.encode())
