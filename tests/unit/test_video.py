"""Video files: the frame at every time, ground truth from label maps, and errors with their reason."""

from __future__ import annotations

from fractions import Fraction

import av
import numpy as np
import pytest
from PIL import Image

from driftlab.datasets import video
from driftlab.datasets.catalogue import open_stream
from driftlab.datasets.frames import IGNORE
from driftlab.errors import DataError

COUNT, RATE, HEIGHT, WIDTH = 60, 10, 48, 80


def grey_of(number: int) -> int:
    return 10 + 4 * number


def write_video(path, codec="libx264", options=None, rate=RATE, shown=range(COUNT)):
    """Write a video whose frame k has grey level 10 + 4 k; frames that are not in `shown` are left out."""
    with av.open(str(path), "w") as container:
        track = container.add_stream(
            codec, rate=rate, options=options or {"g": "15", "bf": "2", "crf": "4", "threads": "1"}
        )
        track.width, track.height, track.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for number in shown:
            frame = av.VideoFrame.from_ndarray(np.full((HEIGHT, WIDTH, 3), grey_of(number), np.uint8), format="rgb24")
            frame.pts, frame.time_base = number, 1 / Fraction(rate)
            container.mux(track.encode(frame))
        container.mux(track.encode())
    return path


@pytest.fixture(scope="module")
def video_file(tmp_path_factory):
    return write_video(tmp_path_factory.mktemp("film") / "film.mp4")


def show(path, fps=float(RATE), duration_s=0.0, height=24, width=40):
    return open_stream(f"video:{path}", seed=0, height=height, width=width, fps=fps, duration_s=duration_s)


def numbers_of(frames):
    """Read the numbers back; the way through YUV and back darkens by about two steps of grey."""
    return np.rint((frames.images.mean(axis=(1, 2, 3)) - 8) / 4).astype(int).tolist()


@pytest.mark.parametrize("name, codec", [("a.mp4", "libx264"), ("a.mkv", "libx264"), ("a.avi", "mpeg4")])
def test_every_seek_finds_its_frame(tmp_path, name, codec):
    stream = show(write_video(tmp_path / name, codec, None if codec == "libx264" else {"g": "15", "qmax": "2"}))
    assert stream.duration_s == pytest.approx(COUNT / RATE, abs=0.02)
    order = np.random.default_rng(0).permutation(COUNT)
    assert numbers_of(stream.at(order / RATE)) == order.tolist()
    for number in order[:20]:
        assert numbers_of(stream.at([number / RATE])) == [number]


@pytest.mark.parametrize(
    ("codec", "options"),
    [
        ("libx264", {"g": "15", "bf": "3", "crf": "4"}),
        ("libx264", {"g": "15", "bf": "3", "crf": "4", "x264-params": "open-gop=1"}),
        ("libx264", {"g": "15", "bf": "0", "crf": "4"}),
        ("libx264", {"g": "1", "crf": "4"}),
        ("mpeg4", {"g": "15", "bf": "2", "qmin": "1", "qmax": "1"}),
    ],
)
def test_an_avi_file_without_presentation_times_has_the_right_frames(tmp_path, codec, options):
    """AVI stores the decoding order only, and H.264 stores B-frames after frames that are shown later."""
    stream = show(write_video(tmp_path / "a.avi", codec, {**options, "threads": "1"}))
    assert stream.duration_s == pytest.approx(COUNT / RATE)
    order = np.random.default_rng(0).permutation(COUNT)
    assert numbers_of(stream.at(order / RATE)) == order.tolist()
    for number in order[:10]:
        assert numbers_of(stream.at([number / RATE])) == [number]


@pytest.mark.parametrize("rate", [24, Fraction(24000, 1001), 30, Fraction(30000, 1001), 60])
@pytest.mark.parametrize("left_out", [[], [20, 21, 40]])
def test_rounded_times_have_the_right_frames(tmp_path, rate, left_out):
    """Matroska rounds to milliseconds, so that 2/30 s became 0.067 s and frame 2 came only after it."""
    shown = [number for number in range(COUNT) if number not in left_out]
    stream = show(write_video(tmp_path / "a.mkv", rate=rate, shown=shown), fps=float(rate))
    assert stream.duration_s == pytest.approx(float(COUNT / rate), abs=1e-9)
    expected = [max(other for other in shown if other <= number) for number in range(COUNT)]
    assert numbers_of(stream.at(np.arange(COUNT) / float(rate))) == expected


def test_a_long_tick_is_no_tolerance(tmp_path):
    """A tick of this AVI lasts one frame: times are exact, and dropped frames change no result."""
    shown = [number for number in range(COUNT) if number % 7 != 3]
    stream = show(write_video(tmp_path / "a.avi", "mpeg4", {"qmax": "2"}, shown=shown), fps=4.0 * RATE)
    times = np.arange(COUNT * 4 - 4) / (4 * RATE)
    assert numbers_of(stream.at(times)) == [max(n for n in shown if n <= k // 4) for k in range(len(times))]


def test_another_rate_uses_the_last_frame_before(video_file):
    assert numbers_of(show(video_file, fps=4.0).at(np.arange(6) / 4)) == [0, 2, 5, 7, 10, 12]
    assert numbers_of(show(video_file, fps=30.0).at(np.arange(6) / 30)) == [0, 0, 0, 1, 1, 1]


def test_a_given_length_cuts_the_video_and_never_extends_it(video_file):
    assert show(video_file, duration_s=2.0).duration_s == 2.0
    longer = show(video_file, duration_s=9.0)
    assert longer.duration_s == show(video_file).duration_s == pytest.approx(COUNT / RATE, abs=0.02)
    assert open_stream(f"video:{video_file}", seed=0, height=24, width=40, fps=5, duration_s=None).duration_s > 5.9


def test_a_video_without_label_maps_has_no_truth(video_file):
    stream = show(video_file)
    frames = stream.at([0.0])
    assert not stream.has_truth and frames.labels is None and frames.boxes is None and stream.changes_s() == ()


@pytest.mark.parametrize("in_folder_of_video", [True, False])
def test_label_maps_are_found_by_frame_number(tmp_path, in_folder_of_video):
    path = write_video(tmp_path / "film.mp4")
    folder = tmp_path if in_folder_of_video else tmp_path / "film.mp4.labels"
    folder.mkdir(exist_ok=True)
    for number in (0, 7):
        labels = np.full((HEIGHT, WIDTH), number % 3, np.uint8)
        labels[:, WIDTH // 2 :] = IGNORE
        picture = Image.fromarray(labels)
        if number:  # a palette PNG holds class numbers too
            picture.putpalette(list(range(256)) * 3)
        picture.save(folder / f"gt_{number:06d}.png")
    (folder / "classes.txt").write_text("ground\nwall\n\nsky\n", encoding="utf-8")
    stream = show(path)
    assert stream.has_truth and stream.classes == ("ground", "wall", "sky")
    first, unknown, seventh = stream.at([0.0, 0.3, 0.7]).labels
    assert (first[:, :20] == 0).all() and (first[:, 20:] == IGNORE).all()
    assert (unknown == IGNORE).all()
    assert (seventh[:, :20] == 1).all() and (seventh[:, 20:] == IGNORE).all()


def test_invalid_label_maps_are_refused(tmp_path):
    path = write_video(tmp_path / "film.mp4")
    Image.fromarray(np.full((4, 4), 77, np.uint8)).save(tmp_path / "gt_000000.png")
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(tmp_path / "gt_000001.png")
    (tmp_path / "gt_000002.png").write_bytes(b"no picture")
    stream = show(path)
    for time_s, reason in ((0.0, r"\[77\].*classes.txt"), (0.1, "one value per pixel"), (0.2, "cannot be read")):
        with pytest.raises(DataError, match=reason):
            stream.at([time_s])


def test_other_files_are_refused(tmp_path, video_file):
    (tmp_path / "text.mp4").write_text("not a film", encoding="utf-8")
    with pytest.raises(DataError, match="cannot be read as a video"):
        show(tmp_path / "text.mp4")
    with pytest.raises(DataError, match="no video file"):
        show(tmp_path / "absent.mp4")
    with pytest.raises(DataError, match="no video file"):
        show(tmp_path)
    (tmp_path / "torn.mp4").write_bytes(video_file.read_bytes()[:600])
    with pytest.raises(DataError, match="cannot be read as a video"):
        show(tmp_path / "torn.mp4")


def test_a_video_without_frames_is_refused(tmp_path):
    path = tmp_path / "sound.wav"
    with av.open(str(path), "w") as container:
        track = container.add_stream("pcm_s16le", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), format="s16", layout="mono")
        frame.sample_rate = 8000
        container.mux(track.encode(frame))
    with pytest.raises(DataError, match="holds no video"):
        show(path)


def test_a_title_may_have_any_encoding(tmp_path):
    """The title of a video is not read, but PyAV would decode its bytes as UTF-8."""
    path = tmp_path / "film.mkv"
    with av.open(str(path), "w") as container:
        container.metadata["title"] = "HARBOUR"
        track = container.add_stream("mpeg4", rate=RATE)
        track.width, track.height, track.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        container.mux(track.encode(av.VideoFrame.from_ndarray(np.zeros((HEIGHT, WIDTH, 3), np.uint8), format="rgb24")))
        container.mux(track.encode())
    path.write_bytes(path.read_bytes().replace(b"HARBOUR", b"HARB\xa0UR"))
    assert show(path).at([0.0]).images.shape == (1, 24, 40, 3)


@pytest.mark.parametrize(
    ("bound", "most", "message"),
    [
        ("MAX_VIDEO_BYTES", 1000, "bytes, allowed are 1,000"),
        ("MAX_FRAME_PX", WIDTH * HEIGHT - 1, "80 x 48 pixels, allowed are 3,839"),
        ("MAX_LENGTH_S", 5.0, "5.9 s apart, allowed are 5"),
    ],
)
def test_a_large_video_is_refused_before_it_is_decoded(video_file, monkeypatch, bound, most, message):
    monkeypatch.setattr(video, bound, most)
    monkeypatch.setattr(video.VideoStream, "_decode_to", lambda *_: pytest.fail("it was decoded"))
    with pytest.raises(DataError, match=message):
        show(video_file)


@pytest.mark.parametrize("content", [b"sea\xff\n", b"\xff\xfes\0"])
def test_an_invalid_classes_file_is_refused(tmp_path, content):
    (tmp_path / "classes.txt").write_bytes(content)
    with pytest.raises(DataError, match=r"classes\.txt' cannot be read"):
        show(write_video(tmp_path / "film.mp4"))


def test_a_damaged_video_is_read_or_refused(tmp_path, video_file):
    sound, dice = video_file.read_bytes(), np.random.default_rng(0)
    shown = 0
    for number in range(10):
        spoilt, place = bytearray(sound), dice.integers(len(sound))
        spoilt[place : place + 16] = dice.bytes(16)
        (tmp_path / f"{number}.mp4").write_bytes(spoilt)
        try:
            show(tmp_path / f"{number}.mp4").at(np.arange(0, COUNT, 7) / RATE)
            shown += 1
        except DataError:
            continue
    assert shown
