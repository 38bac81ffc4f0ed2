"""Measure how long a headless Chromium takes to open a report, against an empty page, as JSON lines.

python benchmarks/report_opening.py REPORT.html [REPORT.html …]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from _shared import options_of, report

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "factories"))

from browser import CHROMIUM, chromium

REPEATS = 5
EMPTY = "data:text/html,<title>empty</title>"


def seconds(browser: Any, address: str) -> float:
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
    """Print the time of an empty page, and that of each report with its multiple."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reports", nargs="*", type=Path)
    options = options_of(parser)
    if not os.access(CHROMIUM, os.X_OK):
        sys.exit(f"Chromium is needed, and {CHROMIUM} does not exist: install it, or put `chromium` on the PATH.")
    with chromium() as browser:
        empty_s = seconds(browser, EMPTY)
        report({"benchmark": "report_opening", "report": None, "s": empty_s})
        for path in options.reports:
            report_s = seconds(browser, path.resolve().as_uri())
            size_mb = path.stat().st_size / 1e6
            line = {"report": str(path), "s": report_s, "ratio": report_s / empty_s, "mb": size_mb}
            report({"benchmark": "report_opening", **line})


if __name__ == "__main__":
    main()
