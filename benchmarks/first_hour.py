"""Time the path of a new user in an empty folder; one JSON line.

Own network, own method and a folder of 200 pictures, compared with tent and adabn, until the report is written: the
commands of docs/ten-minutes.md. A command that fails ends the benchmark.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from _shared import options_of, report
from PIL import Image, ImageDraw

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "ten-minutes.md"
SHAPES = {"circle": 0, "square": 4, "triangle": 3, "hexagon": 6}  # corners; 0 is round


def draw_pictures(folder: Path, count: int) -> None:
    """Draw pictures of four classes: four fifths for training, the rest for the stream."""
    rng = np.random.default_rng(0)
    for number in range(count):
        name = list(SHAPES)[number % len(SHAPES)]
        back, front = (tuple(map(int, rng.integers(low, low + 120, 3))) for low in (0, 130))
        image = Image.new("RGB", (64, 48), back)
        x, y, radius = (int(rng.integers(*limits)) for limits in ((20, 44), (16, 32), (8, 15)))
        if SHAPES[name]:
            ImageDraw.Draw(image).regular_polygon((x, y, radius), SHAPES[name], fill=front)
        else:
            ImageDraw.Draw(image).ellipse((x - radius, y - radius, x + radius, y + radius), fill=front)
        place = folder / ("test" if number % 5 == 4 else "train") / name
        place.mkdir(parents=True, exist_ok=True)
        image.save(place / f"{number:03}.png")


def written(page: Path) -> tuple[str, list[list[str]]]:
    """Return the experiment of the page, and the words of its commands in order."""
    text = page.read_text(encoding="utf-8")
    experiment = text.split("```yaml pics.yaml\n")[1].split("```")[0]
    lines = [line for block in text.split("```sh\n")[1:] for line in block.split("```")[0].splitlines()]
    return experiment, [line.split()[1:] for line in lines if line.startswith("driftlab ")]


def spent_s() -> float:
    """Return the processor time of ended child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", type=int, default=200)
    parser.add_argument("--commands", type=int, default=8, help="at most so many, from the first one")
    parser.add_argument("--backend", choices=["ray", "inline"], default="ray")
    options = options_of(parser, pictures=8, commands=1)
    experiment, commands = written(PAGE)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    with tempfile.TemporaryDirectory() as name:
        folder, begun_s = Path(name), time.perf_counter()
        environment["DRIFTLAB_CACHE"] = f"{name}/cache"
        draw_pictures(folder / "pictures", options.pictures)
        before_s, each = spent_s(), {}
        for words in commands[: options.commands]:
            if words[0] == "run":
                (folder / "pics.yaml").write_text(experiment, encoding="utf-8")
            more = ["--backend", options.backend] if words[0] == "run" else []
            command = [sys.executable, "-m", "driftlab", *words, *more]
            subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
            each[" ".join(words[:2])] = round(spent_s() - before_s, 1)
            before_s = spent_s()
        if options.commands >= len(commands):
            assert next(folder.glob("runs/*/report.html")).stat().st_size > 10_000
        took_s = time.perf_counter() - begun_s
    line = {"commands": len(each), "processor_s": each, "wall_s": round(took_s, 1)}
    report({"benchmark": "first_hour", **line, "goal": "8 commands, 600 s"})
