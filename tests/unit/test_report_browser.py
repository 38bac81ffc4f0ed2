"""The report in a browser: the clip, values under the pointer, systems switched off, no request."""

from __future__ import annotations

import re

import pytest
import results_factory as factory
from browser import SCHEMES, WIDTHS, chromium, needs_chromium, visit

from driftlab.platform.results.report.page import write_report
from driftlab.platform.results.tables.read import open_run

pytestmark = [pytest.mark.slow, needs_chromium]
PLOT = "section:has(h2:text-is('Accuracy over time')) svg.plot"
MARKS = "[...document.querySelectorAll('[data-series=one_time], [data-part=one_time]')]"
SHOWN = f"{MARKS}.filter(mark => getComputedStyle(mark).display != 'none')"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return write_report(factory.make_run(tmp_path_factory.mktemp("run"), workloads=("streets/driving_la",)))


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


def hover(seen, share=0.5):
    """Move the pointer over the plot of the accuracy and return the lines that appear."""
    plot = seen.page.locator(PLOT).first
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    seen.page.mouse.move(box["x"] + share * box["width"], box["y"] + 0.4 * box["height"])
    return seen.page.locator(".tip").inner_text().split("\n")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_report_opens_without_errors_and_requests_and_fits_the_window(report, browser, width, scheme):
    seen = visit(browser, report, width, scheme)
    seen.wait_for("document.querySelector('video').readyState >= 2")
    assert seen.faults == []
    assert seen.foreign(report.as_uri()) == []
    assert seen.overflow() == 0
    assert seen.unnamed() == []


def test_the_clip_plays_and_its_scores_follow(report, browser):
    seen = visit(browser, report)
    seen.wait_for("document.querySelector('video').currentTime > 4")  # in the second of three moments
    seen.wait_for("document.querySelector('.clip time').textContent == '50 s'")
    assert re.fullmatch(r"one_time 0\.\d\d", seen.page.locator("[data-tile=one_time]").inner_text())
    assert seen.page.locator(".clip .rule").count() == 1


def test_the_pointer_shows_the_values_of_the_tables(report, browser):
    title, axis, *values = hover(visit(browser, report))
    time_s = float(title.removeprefix("time, s: "))
    assert axis == "live mIoU"
    shown = dict(re.fullmatch(r"(\w+)  ([\d.]+)", line).groups() for line in values)
    run = open_run(report.parent)
    frames = run.frame("frames").merge(run.frame("runs")[["cell", "system"]], on="cell")
    near = frames[(frames["time_s"] - time_s).abs() < 1.0].groupby("system")["score_live"].mean()
    assert {name: float(value) for name, value in shown.items()} == pytest.approx(dict(near), abs=0.02)
    assert list(shown) == sorted(shown, key=lambda name: -near[name])


def test_a_system_is_switched_off_on_the_whole_page_and_on_again(report, browser):
    seen = visit(browser, report)
    before = seen.page.evaluate(f"{SHOWN}.length")
    item = seen.page.locator(".legend [data-system=one_time]").first
    item.click()
    assert (before > 3, seen.page.evaluate(f"{SHOWN}.length")) == (True, 0)
    assert not [line for line in hover(seen) if line.startswith("one_time")]
    assert [line for line in hover(seen) if line.startswith("no_custom")]
    item.press("Enter")
    assert seen.page.evaluate(f"{SHOWN}.length") == before
    assert item.get_attribute("aria-pressed") == "true"
