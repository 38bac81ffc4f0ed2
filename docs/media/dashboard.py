"""Take the pictures of the Ray dashboard, and print driftlab's metrics, during a run.

python docs/media/dashboard.py
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
MEDIA = ROOT / "docs/media"
RUN = "demo-1"
EXPERIMENT = (  # networks of little training, since the run is only looked at
    *("demo-streaming", "--seed", "0..3", "--workers", "2"),
    *("--set", "student.pretrain_steps=50", "--set", "compute.placement=nodes"),
)
Rows = tuple[tuple[int, int], ...]
PAGES: dict[str, tuple[str, Rows]] = {  # page, and rows of pixels in the picture
    "actors": ("#/actors", ((0, 900),)),
    "jobs": ("#/jobs/01000000", ((0, 94), (380, 530))),  # the first job; without the command, which names a folder
}
WIDTH, HEIGHT = 1280, 900
METRIC = re.compile(r"^ray_(driftlab_\w+)\{(.*)\} (\S+)$", re.MULTILINE)
OWN = ("run", "cell", "device", "direction")  # labels; Ray adds those of the process
METRICS, LIMIT_S, LOAD_MS = 4, 1200.0, 6_000.0


def notes_of(process: subprocess.Popen[str]) -> dict[str, str]:
    """Return the addresses that a run prints."""
    found, lines = dict[str, str](), list[str]()
    assert process.stderr is not None
    for line in process.stderr:
        lines.append(line)
        if address := re.match(r"(dashboard|metrics) +(http://[\w.:/]+)", line):
            found[address[1]] = address[2]
        if len(found) == 2:
            return found
    raise SystemExit("".join(lines))


def scrape(address: str) -> list[tuple[str, dict[str, str], str]]:
    """Return name, own labels and value of driftlab's metrics; wait until there are all."""
    until_s = time.monotonic() + LIMIT_S
    while time.monotonic() < until_s:
        text = urllib.request.urlopen(address, timeout=30).read().decode()
        read = [
            (name, dict(re.findall(r'(\w+)="(.*?)"', labels)), value) for name, labels, value in METRIC.findall(text)
        ]
        if len({name for name, *_ in read}) >= METRICS:
            return [(name, {key: labels[key] for key in OWN if key in labels}, value) for name, labels, value in read]
        time.sleep(2)
    raise SystemExit(f"{address} has not all metrics of driftlab after {LIMIT_S:.0f} s")


def picture(browser: Any, address: str, token: str, rows: Rows, target: Path) -> None:
    """Write rows of a page of the dashboard as a picture."""
    context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT})
    context.add_cookies([{"name": "ray-authentication-token", "value": token, "url": address}])
    page = context.new_page()
    page.goto(address)
    page.wait_for_timeout(LOAD_MS)
    shot = np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))
    Image.fromarray(np.concatenate([shot[first:end] for first, end in rows])).save(target, optimize=True)


def main() -> None:
    sys.path.insert(0, str(ROOT / "tests/factories"))
    from browser import chromium

    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "driftlab", "run", *EXPERIMENT, "--dashboard", "--out", f"{folder}/{RUN}"]
        process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        try:
            notes = notes_of(process)
            for name, labels, value in scrape(notes["metrics"]):
                print(name, labels, value)  # noqa: T201
            token = subprocess.check_output([sys.executable, "-m", "ray.scripts.scripts", "get-auth-token"], text=True)
            with chromium() as browser:
                for name, (page, rows) in PAGES.items():
                    target = MEDIA / f"dashboard-{name}.png"
                    picture(browser, f"{notes['dashboard']}/{page}", token.strip(), rows, target)
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main()
