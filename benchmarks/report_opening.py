"""Measure how long a headless Chromium takes to open a report, against an empty page, as JSON lines.

    python benchmarks/report_opening.py REPORT.html [REPORT.html …]

Without arguments, the report of the newest run in `runs/` is opened.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from driftlab.platform.results.tables.read import newest_run

CHROMIUM = "/usr/bin/chromium"
REPEATS = 5
EMPTY = "data:text/html,<title>empty</title>"


def seconds(browser: Browser, address: str) -> float:
    """Return the median time until a new page is loaded and its clip, if there is one, has a picture."""
    times = []
    for _ in range(REPEATS):
        page = browser.new_page()
        begun_s = time.perf_counter()
        page.goto(address)
        page.wait_for_function("[...document.querySelectorAll('video')].every((one) => one.readyState >= 2)")
        times.append(time.perf_counter() - begun_s)
        page.close()
    return statistics.median(times)


def main() -> None:
    """Print the time of each report, and its multiple of the time of an empty page."""
    paths = list(map(Path, sys.argv[1:])) or [newest_run() / "report.html"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        empty_s = seconds(browser, EMPTY)
        for path in paths:
            report_s = seconds(browser, path.resolve().as_uri())
            size_mb = path.stat().st_size / 1e6
            print(json.dumps({"report": str(path), "s": report_s, "ratio": report_s / empty_s, "mb": size_mb}))
        browser.close()


if __name__ == "__main__":
    main()
