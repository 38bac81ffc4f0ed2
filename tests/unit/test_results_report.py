"""The report: self-contained, the same every time, and no number that the tables do not hold."""

from __future__ import annotations

import base64
import io
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import av
import numpy as np
import pandas as pd
import pytest
import results_factory as factory
from matplotlib.figure import Figure as Canvas
from PIL import Image

from driftlab.errors import DataError
from driftlab.platform.results.figures import plots
from driftlab.platform.results.figures.base import view_of
from driftlab.platform.results.figures.svg import VARIABLES, panel
from driftlab.platform.results.relations import time_series
from driftlab.platform.results.report import page as pages
from driftlab.platform.results.report.page import compose, write_report
from driftlab.platform.results.report.summary import scores
from driftlab.platform.results.report.summary.base import BOUNDS
from driftlab.platform.results.tables.read import open_run
from driftlab.platform.results.tables.recorder import Recorder

FAILED = ("one_time", "streets/interview", 2)
VOID = {"meta", "img", "input", "line", "path", "use", "rect", "br"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return factory.make_run(tmp_path_factory.mktemp("run"), failed=[FAILED])


def test_a_missing_run_to_compare_with_is_refused_before_the_report_is_composed(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "open_run", lambda path: 1 / 0 if path == "missing" else path)
    monkeypatch.setattr(pages, "compose", lambda run: pytest.fail("composed"))
    with pytest.raises(ZeroDivisionError):
        write_report(tmp_path, "missing")


@pytest.fixture(scope="module")
def composed():
    """Return the arguments of the page's template after it is written."""
    return []


@pytest.fixture(scope="module")
def page(folder, composed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "compose", lambda run: composed.append(compose(run)) or composed[0])
        return write_report(folder).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def clip(page, composed):
    return composed[0].clip


class Reader(HTMLParser):
    """Checks nesting and gathers identifiers and everything that a browser would load."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.loads, self.tags, self.words = [], Counter(), [], Counter(), []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags[tag] += 1
        self.ids.update([attrs["id"]] if "id" in attrs else [])
        self.loads += [attrs[key] for key in ("src", "href", "xlink:href", "srcset") if key in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


@pytest.mark.slow
def test_the_page_is_one_file_that_opens_offline(page):
    read = Reader(page)
    assert read.open == []
    assert not [
        load for load in read.loads if not load.startswith(("data:image/png;base64,", "data:video/webm;base64,", "#"))
    ]
    assert not re.search(r"https?://|@import|url\((?!#)", page)
    assert not set(read.tags) & {"link", "iframe", "object"}
    assert (read.tags["script"], read.tags["video"]) == (1, 1)
    assert max(read.ids.values()) == 1
    assert {load[1:] for load in read.loads if load.startswith("#")} <= set(read.ids)
    assert read.tags["img"] == 2 * 3 * (2 + 4)  # settings x moments x (frame, truth, four systems)


@pytest.mark.slow
def test_same_tables_same_bytes(folder, page):
    assert write_report(folder).read_text(encoding="utf-8") == page
    assert not list(folder.glob(".*.tmp"))


@pytest.mark.slow
def test_numbers_are_means_over_seeds_of_the_tables(folder):
    runs = open_run(folder).frame("runs")
    lines = scores.lines(view_of(open_run(folder)))
    (line,) = [x for x in lines if (x.setting, x.system) == ("streets/driving_la", "one_time")]
    ours = runs[(runs["system"] == "one_time") & (runs["workload"] == "streets/driving_la")].sort_values("seed")
    none = runs[(runs["system"] == "no_custom") & (runs["workload"] == "streets/driving_la")].sort_values("seed")
    assert line.live.mean == pytest.approx(ours["score_live"].mean())
    assert line.score.mean == pytest.approx(ours["score"].mean())
    assert line.gain.difference.mean == pytest.approx((ours["score"].to_numpy() - none["score"].to_numpy()).mean())
    assert (line.live.n, line.failed) == (3, 0)
    assert line.energy_j == pytest.approx(40.5)
    assert line.uplink_kbps == pytest.approx(400_000 * 8 / 1000 / 120)
    (broken,) = [x for x in lines if x.failed]
    assert (broken.system, broken.setting, broken.failed, broken.live.n) == (*FAILED[:2], 1, 2)


@pytest.mark.slow
def test_the_page_shows_words_bounds_failures_and_the_command(page, folder):
    text = " ".join(" ".join(Reader(page).words).split())
    assert "24 cells, of which 1 failed." in text
    assert "Live mIoU: likewise, of the newest predictions" in text
    for bound in ("no_adaptation", "best_static", "oracle"):
        assert BOUNDS[bound] in text
    assert "Update exceeds the link: 2.4 MB for a window of 1.0 MB (device=cam-1)" in text
    assert "driftlab run demo --seed 0,1,2 --set 'student.network=tiny wide'" in text
    assert f"driftlab run {folder}/spec.yaml" in text
    assert "torchvision –" in text
    assert "road building vegetation sky car The same moments" in text
    markdown = (folder / "report.md").read_text(encoding="utf-8")
    assert "| streets/driving_la | one_time | 0.533 ± " in markdown
    assert "<svg" not in markdown


@pytest.mark.slow
@pytest.mark.usefixtures("few_claims")
def test_text_from_the_tables_is_never_markup(tmp_path):
    run = factory.make_run(tmp_path, systems=("no_custom",), workloads=("<b>w</b>",), seeds=(0,), snapshots=False)
    Recorder(str(run)).write(
        "x", {"runs": [factory.identity("one_time", "<b>w</b>", 0) | {"status": "failed", "error": "a <script> & b"}]}
    )
    read = Reader(write_report(run).read_text(encoding="utf-8"))
    assert "b" not in read.tags
    assert read.tags["script"] == 1  # that of the page
    assert "a <script> & b" in read.words


@pytest.mark.slow
@pytest.mark.usefixtures("few_claims")
def test_figures_stand_on_the_page_and_their_numbers_in_the_text_too(tmp_path):
    run = factory.make_run(tmp_path, systems=("no_custom", "one_time", "ams"), seeds=(0, 1), snapshots=False)
    read = Reader(write_report(run).read_text(encoding="utf-8"))
    titles = [
        "Accuracy over time",
        "Cost",
        "Method against method",
        "Live score per workload",
        "Scores and traffic",
        "Sampling rate and training phases",
        "Gain per frame",
    ]
    assert [word for word in read.words if word in titles] == titles
    assert read.open == []
    assert max(read.ids.values()) == 1
    text = (run / "report.md").read_text(encoding="utf-8")
    assert re.search(r"^\| ams \| [\d.]+ ± [\d.]+ \| [\d.]+ ± [\d.]+ \| [\d.]+ ± [\d.]+ \|$", text, re.MULTILINE)
    assert "|  | streets/driving_la | streets/interview | mean |\n|---|---|---|---|\n|" in text


@pytest.mark.slow
def test_claims_that_a_run_cannot_tell_are_folded_away(page, folder):
    shown, _, silent = page.partition(" claims that this run cannot test")
    assert "ONCE-1</span>" in shown
    assert "AMS-5</span>" in silent
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert "| ONCE-1: " in text
    assert "AMS-5: " not in text
    assert re.search(
        r"^\d+ claims cannot be tested by this run.* 7 claims cannot be tested by any run\.$", text, re.MULTILINE
    )
    here, _, never = silent.partition("7 claims that no run can test, and why</summary>")
    assert "AS-3</span>" in never and "AS-3</span>" not in here


@pytest.mark.slow
@pytest.mark.usefixtures("few_claims")
def test_a_run_without_cells_or_without_truth_still_has_a_page(tmp_path):
    empty = factory.make_run(tmp_path / "empty", systems=())
    assert "No cell of this run is complete yet." in write_report(empty).read_text(encoding="utf-8")

    blind = factory.make_run(tmp_path / "blind", systems=(), seeds=(0,))
    rows = factory.rows("no_custom", "video:x.mp4", 0, 20.0, 2.0, True)
    for chunk in rows["frames"]:
        chunk.update(score_frame=None, score_window=None, score_live=None, pixel_accuracy=None)
    rows["runs"][0].update(score=None, score_live=None, score_frame=None, score_global=None, energy_j=None)
    rows["snapshots"] = [picture | {"truth": None} for picture in rows["snapshots"]]
    Recorder(str(blind)).write("x", rows)
    page = write_report(blind).read_text(encoding="utf-8")
    assert "there is no accuracy to draw" in page
    assert Reader(page).tags["img"] == 3 * 2  # the strip of frame and prediction
    assert not re.search(r"\bnan\b|\bNone\b", " ".join(Reader(page).words))
    assert (
        "| video:x.mp4 | no_custom (bound: no adaptation) | – | – | – | – | 0 | 29.9 | – | 0 |"
        in (blind / "report.md").read_text()
    )


def test_a_folder_without_a_run_has_no_report(tmp_path):
    with pytest.raises(DataError):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


# --- plots


def test_the_style_sheet_has_every_colour_in_both_themes():
    sheet = (Path(pages.__file__).parent / "templates" / "report.css").read_text("utf-8")
    counts = {name: sheet.count(f" {name.removeprefix('var(').removesuffix(')')}: ") for name in VARIABLES.values()}
    assert set(counts.values()) == {2}, counts


@pytest.mark.slow
def test_a_system_has_one_style_everywhere_and_bounds_come_last(folder):
    runs = open_run(folder).frame("runs")
    styles = plots.assign_styles(runs, ["one_time"])
    assert list(styles) == ["one_time", "no_custom", "best_static", "oracle"]
    assert styles["one_time"].colour == plots.COLOURS[0]
    greys = [plots.GREYS[bound] for bound in ("no_adaptation", "best_static", "oracle")]
    assert [styles[name].colour for name in list(styles)[1:]] == greys
    many = pd.DataFrame({"system": [f"s{k:02}" for k in range(12)], "bound": [None] * 12})
    assert len(set(plots.assign_styles(many).values())) == 12


def test_points_of_one_colour_have_separate_shapes_in_the_legend():
    styles = plots.series(map(str, range(3 * len(plots.COLOURS))))
    assert len({(look.colour, look.marker) for look in styles.values()}) == len(styles)
    axis = Canvas().subplots()
    for name in ("0", "8", "16"):
        plots.trend(axis, pd.DataFrame({"x": [0.1], "mean": [0.5], "low": [0.4], "high": [0.6]}), "x", styles[name])
    assert [line.get_marker() for line in axis.lines] == ["o", "s", "^"]
    assert set(pages.SHAPES) == set(plots.MARKERS[1:])
    canvas = Canvas()
    plots.legend(canvas, {name: styles[name] for name in ("0", "8")})
    assert [line.get_marker() for line in canvas.legends[0].get_lines()] == ["", "s"]


@pytest.mark.slow
def test_no_bound_is_drawn_over_a_method(folder):
    tables = open_run(folder)
    runs = plots.with_settings(tables.frame("runs"))
    axis, styles = Canvas().subplots(), plots.assign_styles(runs)
    plots.accuracy(axis, runs, tables.frame("frames"), styles)
    heights = {line.get_label(): line.get_zorder() for line in axis.lines if line.get_label() in styles}
    assert heights["no_custom"] < heights["one_time"]


def test_changes_of_scene_are_counted_per_stream():
    stream = {"cell": "x", "app": "a", "time_s": np.arange(6.0)}
    frames = pd.concat(
        [
            pd.DataFrame(stream | {"device": "d0", "scene": [0, 0, 1, 1, 0, 0]}),
            pd.DataFrame(stream | {"device": "d1", "scene": [5, 5, 5, 5, 6, 6]}),
        ]
    )
    found = time_series.scene_changes(frames.sample(frac=1, random_state=1))
    assert found.to_numpy().tolist() == [[2.0, 0.5], [4.0, 1.0]]


def test_a_timeline_averages_devices_and_never_holds_too_many_points():
    times = np.arange(1000) / 10
    runs = pd.DataFrame({"cell": ["x"], "system": ["s"], "seed": [0]})
    frames = pd.concat(
        [pd.DataFrame({"cell": "x", "time_s": times, "score_live": level + times / 1000}) for level in (0.2, 0.4)]
    )
    lines = time_series.average_scores(runs, frames, plots.POINTS)
    assert len(lines) == 200
    assert np.allclose(lines["score_live"], 0.3 + lines["time_s"] / 1000)
    assert lines["time_s"].iloc[0] == pytest.approx(times[:5].mean())
    short = time_series.average_scores(runs, frames[frames["time_s"] < 10], plots.POINTS)
    assert len(short) == 100


@pytest.mark.slow
def test_a_panel_is_inline_svg_in_the_colours_of_the_page():
    def draw(axis):
        axis.plot([0, 1], [0, 1 / 3], color=plots.COLOURS[0])
        axis.set_title("0.123456")

    svg = panel("p0", 'a "plot"', draw, 120)
    assert svg == panel("p0", 'a "plot"', draw, 120)
    assert svg.startswith("<svg class=")
    assert "var(--s0)" in svg
    assert ">0.123456<" in svg  # coordinates are cut, words are not
    assert not re.search(r"\d\.\d{3,}", re.sub(r">[^<]*<|data-[xy]=\S+ \S+", "><", svg))
    assert "http" not in svg


@pytest.mark.parametrize(
    "students, named",
    [
        (["tiny"], "mIoU"),
        (["tiny_classifier", None], "accuracy"),
        (["tiny_detector"], "F1"),
        (["mine", "tiny"], "mIoU"),
    ],
)
def test_a_score_has_the_name_of_the_student_s_task(students, named):
    assert plots.measure(pd.DataFrame({"student": students})) == named


@pytest.mark.slow
@pytest.mark.usefixtures("few_claims")
def test_a_report_of_another_task_names_its_measure_and_no_street_classes(tmp_path, page, composed):
    run = factory.make_run(tmp_path, systems=(), seeds=(0,))
    rows = factory.rows("no_custom", "signs/town", 0, 20.0, 2.0, True)
    rows["runs"][0].update(student="tiny_classifier")
    Recorder(str(run)).write("x", rows)
    other = compose(open_run(run))
    assert (composed[0].measure, other.measure) == ("mIoU", "accuracy")
    assert all(strip.classes for strip in composed[0].strips)
    assert [strip.classes for strip in other.strips] == [()]


# --- the clip


def decoded(source):
    """Decode a clip of the page to its pictures and its length."""
    with av.open(io.BytesIO(base64.b64decode(source.partition(",")[2]))) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)], container.duration / 1e6


@pytest.mark.slow
def test_a_clip_shows_every_moment_of_one_stream_in_ten_seconds(folder, clip):
    run = open_run(folder)
    assert clip.tiles == ("frame", "truth", "one_time", "no_custom")
    assert clip.times_s == (5.0, 50.0, 100.0)
    assert clip.aspect == 96 / 48
    pictures, length_s = decoded(clip.source)
    assert len(pictures) == 3
    assert length_s == pytest.approx(10.0, abs=0.01)
    snapshots = run.frame("snapshots").merge(run.frame("runs")[["cell", "system", "workload", "seed"]], on="cell")
    own = snapshots[(snapshots["workload"] == clip.setting) & (snapshots["seed"] == clip.seed)]
    for time_s, picture in zip(clip.times_s, pictures, strict=True):
        rows = own[own["time_s"] == time_s].set_index("system")
        stored = [rows["truth"].iloc[0], *(rows["prediction"][name] for name in clip.tiles[2:])]
        for place, png in enumerate(stored, start=1):
            tile = picture[144 * (place // 2) :, 288 * (place % 2) :][1:144:3, 1:288:3]  # a pixel is 3 wide
            truth = np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)
            assert np.median(np.abs(tile - truth)) < 12  # the codec loses colours at edges


@pytest.mark.slow
def test_the_scores_below_a_clip_are_those_of_its_stream(folder, clip):
    frames = open_run(folder).frame("frames")
    own = frames[frames["cell"] == f"one_time/{clip.setting}/two-phones/seed-{clip.seed}"]
    own = own[own["device"] == clip.device].sort_values("time_s")
    (path,) = re.findall(r'data-series="one_time"> <path d="([^"]+)"', clip.scores)
    pixels = np.array(re.findall(r"[ML] (\S+) (\S+)", path), dtype=float)  # without points on a straight line
    ends = {way: re.search(rf'data-{way}="([^"]+)"', clip.scores)[1] for way in "xy"}
    ends = {way: np.array([pair.split(":") for pair in text.split()], dtype=float) for way, text in ends.items()}
    times_s, scores = (
        ends[way][0, 1] + (pixels[:, k] - ends[way][0, 0]) * np.diff(ends[way][:, 1]) / np.diff(ends[way][:, 0])
        for k, way in enumerate("xy")
    )
    assert np.allclose(np.interp(own["time_s"], times_s, scores), own["score_live"], atol=0.002)


@pytest.mark.slow
@pytest.mark.usefixtures("few_claims")
def test_a_clip_names_its_tiles_and_moments_have_three_digits(tmp_path, page, clip):
    assert f"frame, truth, and predictions of {clip.tiles[2]} and no_custom, one colour" in page
    run = factory.make_run(tmp_path, systems=(), seeds=(0,))
    rows = factory.rows("one_time", "w", 0, 20.0, 2.0, True)
    moments = [{**rows["snapshots"][0], "time_s": time_s} for time_s in (4 / 3, 8 / 3)]
    Recorder(str(run)).write("x", rows | {"snapshots": moments})
    other = write_report(run).read_text(encoding="utf-8")
    assert "frame, truth, and predictions of one_time, one colour" in other
    assert re.findall(r'<th scope="col">(\S+ s)</th>', other) == ["1.33 s", "2.67 s"]


@pytest.mark.slow
@pytest.mark.usefixtures("few_claims")
def test_one_moment_makes_no_clip_and_unknown_colours_have_no_names(tmp_path):
    run = factory.make_run(tmp_path, systems=(), seeds=(0,))
    rows = factory.rows("no_custom", "w", 0, 20.0, 2.0, True)
    picture = {**rows["snapshots"][0], "prediction": factory.png(np.full((4, 4, 3), 77, np.uint8))}
    Recorder(str(run)).write("x", rows | {"snapshots": [picture]})
    page = compose(open_run(run))
    assert page.clip is None
    assert [strip.classes for strip in page.strips] == [()]
