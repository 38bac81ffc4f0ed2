"""Make the pictures and the sentences of the README from stored runs.

driftlab demo --out runs/demo
driftlab run demo-streaming --seed 0 --set snapshots=110 --out runs/street
python docs/media/make.py runs/demo runs/street
"""

from __future__ import annotations

import argparse
import io
import re
import sys
import textwrap
from pathlib import Path

import pandas as pd
from PIL import Image, ImageDraw, ImageFont

from driftlab.datasets.sheet import PALETTE
from driftlab.datasets.streets.presets import CLASSES as NAMES
from driftlab.platform.results.board.entries import run_folders
from driftlab.platform.results.report.acts import ACTS, result_of
from driftlab.platform.results.tables.columns import LIVE_SCORE
from driftlab.platform.results.tables.read import Run, Tables, open_run

ROOT = Path(__file__).resolve().parents[2]
MEDIA, README = ROOT / "docs/media", ROOT / "README.md"
BLOCK = re.compile(r"(<!-- demo -->\n).*?(<!-- end of demo -->)", re.DOTALL)
WIDTH, HEIGHT = 1280, 900  # of the picture of the report
REPORT_BYTES, CLIP_BYTES = 300_000, 2_000_000
SIDES = (("no_custom", "without updates", "#6b7179"), ("ams", "with updates (AMS)", "#2660c4"))
TILE, GAP, TEXT, PLOT = (288, 192), 8, 26, 96  # pixels of the clip
FRAME_MS, COLUMNS = 125, 130  # of the clip, and of the README
CLASSES = range(7)  # that the street shows
PAPER, INK, RULE = "#fdfdfc", "#1b1f24", "#dfe2e6"


def sentences_of(runs: dict[str, Run]) -> list[str]:
    """Return a sentence per act of the demo."""
    return [result_of(act, Tables(runs[f"demo-{name}"])).sentence for name, act in ACTS.items()]


def write_sentences(sentences: list[str]) -> None:
    """Replace the sentences in the README."""
    text = README.read_text(encoding="utf-8")
    listed = "".join(f"{textwrap.fill(f'* {sentence}', COLUMNS, subsequent_indent='  ')}\n" for sentence in sentences)
    README.write_text(BLOCK.sub(lambda found: f"{found[1]}{listed}{found[2]}", text), encoding="utf-8")


def picture_report(page: Path, target: Path) -> None:
    """Write the beginning of a report as a picture."""
    sys.path.insert(0, str(ROOT / "tests/factories"))
    from browser import chromium, visit

    with chromium() as browser:
        seen = visit(browser, page, WIDTH)
        seen.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
        shot = seen.page.screenshot()
    Image.open(io.BytesIO(shot)).convert("RGB").save(target, optimize=True)


def clip_street(run: Run, target: Path) -> None:
    """Write frames and predictions, without and with updates, above scores over time, as a clip."""
    runs = run.frame("runs")
    runs = runs[runs["seed"] == runs["seed"].min()]
    snapshots, frames = (run.frame(name).merge(runs[["cell", "system"]], on="cell") for name in ("snapshots", "frames"))
    snapshots, frames = (rows[rows["device"] == snapshots["device"].min()] for rows in (snapshots, frames))
    scores = {name: frames[frames["system"] == name].set_index("time_s")[LIVE_SCORE] for name, *_ in SIDES}
    pictures = {name: snapshots[snapshots["system"] == name].set_index("time_s") for name, *_ in SIDES}
    images = [draw_moment(time_s, pictures, scores) for time_s in pictures["ams"].index]
    images[0].save(target, save_all=True, append_images=images[1:], duration=FRAME_MS, loop=0, quality=60, method=4)


def draw_moment(time_s: float, pictures: dict[str, pd.DataFrame], scores: dict[str, pd.Series]) -> Image.Image:
    """Draw one moment of the clip."""
    width = 3 * TILE[0] + 2 * GAP
    image = Image.new("RGB", (width, TEXT + TILE[1] + GAP + PLOT), PAPER)
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(size=15)
    tiles = [("camera", INK, pictures["ams"].at[time_s, "image"])]
    for name, words, colour in SIDES:
        now = scores[name][:time_s].iloc[-1]
        tiles.append((f"{words}: {now:.2f}", colour, pictures[name].at[time_s, "prediction"]))
    for column, (words, colour, data) in enumerate(tiles):
        left = column * (TILE[0] + GAP)
        draw.text((left + 2, 4), words, colour, font)
        image.paste(Image.open(io.BytesIO(data)).convert("RGB").resize(TILE, Image.Resampling.NEAREST), (left, TEXT))
    draw_scores(draw, time_s, scores, (0, TEXT + TILE[1] + GAP, width, TEXT + TILE[1] + GAP + PLOT))
    return image


def draw_scores(
    draw: ImageDraw.ImageDraw, time_s: float, scores: dict[str, pd.Series], box: tuple[int, int, int, int]
) -> None:
    """Draw the scores until now, from 0 to 1, over the whole time."""
    left, top, right, bottom = box[0] + 24, box[1] + 4, box[2] - 4, box[3] - 20
    end_s, font = scores["ams"].index.max(), ImageFont.load_default(size=12)
    for value in (0, 1):
        y = bottom - value * (bottom - top)
        draw.line((left, y, right, y), RULE)
        draw.text((left - 12, y - 7), str(value), INK, font)
    draw.text((left, bottom + 3), f"score of the last 10 s, after {time_s:.0f} s", INK, font)
    for place, label in enumerate(CLASSES):
        x = left + 260 + 84 * place
        draw.rectangle((x, bottom + 6, x + 8, bottom + 14), tuple(PALETTE[label].tolist()))
        draw.text((x + 12, bottom + 3), NAMES[label], INK, font)
    for name, _, colour in SIDES:
        past = scores[name][:time_s]
        points = [(left + (right - left) * x / end_s, bottom - (bottom - top) * y) for x, y in past.items()]
        draw.line(points, colour, 2, "curve")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("demo", type=Path, help="folder with a run of each act")
    parser.add_argument("street", type=Path, help="run of demo-streaming with many snapshots")
    options = parser.parse_args()
    found = [open_run(folder) for folder in run_folders(options.demo)]
    runs = {str(run.spec["name"]): run for run in sorted(found, key=lambda run: str(run.info.get("started")))}
    for limit, target, write in (
        (REPORT_BYTES, "report.png", lambda file: picture_report(runs["demo-streaming"].path / "report.html", file)),
        (CLIP_BYTES, "street.webp", lambda file: clip_street(open_run(options.street), file)),
    ):
        write(MEDIA / target)
        if (MEDIA / target).stat().st_size > limit:
            raise SystemExit(f"{target} has more than {limit} bytes")
    write_sentences(sentences_of(runs))


if __name__ == "__main__":
    main()
