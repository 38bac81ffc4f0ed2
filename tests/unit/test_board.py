"""The board of many runs: its rows, damaged and unfinished folders, and the page in a browser."""

from __future__ import annotations

import json
import re

import pytest
import yaml
from browser import SCHEMES, WIDTHS, chromium, needs_chromium, visit
from command_factory import run_command
from results_factory import make_run
from tuning_factory import make_search

from driftlab.errors import RequestError
from driftlab.platform.results.board.entries import entries_of
from driftlab.platform.results.board.page import write_board
from driftlab.platform.results.tables.read import open_run

SMALL = {"workloads": ("streets/interview",), "seeds": (0, 1), "duration_s": 40.0, "snapshots": False}
TRIALS = "#searches tbody tr"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Five runs: one with bounds, one in a subfolder, one failed, one unfinished, one damaged."""
    runs = tmp_path_factory.mktemp("runs")
    make_run(runs / "first", **SMALL)
    (runs / "first/report.html").write_text("<!doctype html><title>report of first</title>")
    make_run(runs / "campaign/second", systems=("no_custom", "ams"), **SMALL)
    make_run(runs / "failed", systems=("ams",), failed=[("ams", "streets/interview", 1)], **SMALL)
    make_run(runs / "unfinished", systems=("no_custom", "ams"), **SMALL)
    next((runs / "unfinished/tables/runs").glob("ams*seed-1*")).unlink()
    make_run(runs / "damaged", systems=("ams",), **SMALL)
    next((runs / "damaged/tables/runs").glob("*.parquet")).write_bytes(b"no table")
    (runs / "notes").mkdir()
    return runs


@pytest.fixture(scope="module")
def by_name(folder):
    return {one.name: one for one in entries_of(folder, folder / "board.html")}


def rows_of(page):
    text = re.search(r'id="runs">(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL)[1]
    return {row["name"]: row for row in json.loads(text)}


def test_every_folder_of_a_run_is_one_row_with_its_health(by_name):
    states = {name: one.health for name, one in by_name.items()}
    assert states == {
        "first": "complete",
        "campaign/second": "complete",
        "failed": "failed",
        "unfinished": "unfinished",
        "damaged": "damaged",
    }
    assert [one.cells for one in (by_name["first"], by_name["failed"], by_name["unfinished"])] == [
        (8, 0, 8),
        (1, 1, 2),
        (3, 0, 4),
    ]
    assert all("\n" not in note for one in by_name.values() for note in one.notes)
    assert len(by_name["damaged"].notes) == 1
    assert "cannot be read" in by_name["damaged"].notes[0]
    assert by_name["unfinished"].notes[0] == "1 of 4 cells have no result yet."


def test_a_row_has_scores_bounds_and_curves_of_its_systems(folder, by_name):
    means = open_run(folder / "first").frame("runs").groupby("system")["score_live"].mean()
    systems = {one["name"]: one for one in by_name["first"].systems}
    assert [name for name, one in systems.items() if one["bound"]] == ["no_custom", "best_static", "oracle"]
    for name, one in systems.items():
        assert one["score"] == pytest.approx(means[name], abs=1e-3)
        assert one["low"] <= one["score"] <= one["high"]
        times_s = [time_s for time_s, _ in one["curve"]]
        assert times_s == sorted(times_s)
        assert 30 <= times_s[-1] <= 40.0


def test_links_lead_from_the_page_to_the_reports(folder, tmp_path):
    page, _ = write_board(folder, tmp_path / "elsewhere.html")
    links = {name: row["report"] for name, row in rows_of(page).items()}
    assert links["campaign/second"] == ""
    assert (page.parent / links["first"]).resolve() == (folder / "first/report.html").resolve()


def test_text_of_a_run_cannot_end_the_script(tmp_path):
    make_run(tmp_path / "one", systems=("ams",), **SMALL)
    file = tmp_path / "one/spec.yaml"
    spec = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump(spec | {"summary": "</script><script>alert(1)</script>"}))
    page, _ = write_board(tmp_path)
    assert page.read_text().count("</script>") == 2
    assert rows_of(page)["one"]["summary"] == "</script><script>alert(1)</script>"


def test_a_missing_folder_and_that_of_one_run_are_refused(folder, tmp_path):
    for wrong in (tmp_path / "none", folder / "first"):
        with pytest.raises(RequestError):
            write_board(wrong)
    done = run_command(["board", str(tmp_path / "none")])
    assert isinstance(done.exception, RequestError)  # exit code 2


def test_the_command_names_the_page_and_the_damaged_folders(folder):
    done = run_command(["board", str(folder)])
    assert done.exit_code == 0
    assert done.stdout.strip() == str(folder / "board.html")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("damaged: ")


@needs_chromium
@pytest.mark.slow
def test_the_page_filters_sorts_and_compares_by_keyboard(folder):
    page, _ = write_board(folder)
    with chromium() as browser:
        seen = visit(browser, page)
        tab, shown = seen.page, lambda: seen.page.locator("#all tbody th").all_inner_texts()
        assert len(shown()) == 5
        tab.get_by_label("Filter").press_sequentially("second")
        assert [text.splitlines()[0] for text in shown()] == ["campaign/second"]
        tab.get_by_label("Filter").fill("")
        tab.get_by_role("button", name="Score", exact=True).press("Enter")
        assert tab.locator("#all th[aria-sort=descending]").inner_text() == "Score"
        assert shown()[0].startswith(("campaign/second", "unfinished"))  # ams is above one_time
        assert shown()[-1].startswith("damaged")
        tab.get_by_role("button", name="Choose none").press("Enter")
        for name in ("first", "campaign/second"):
            tab.get_by_label(f"Choose {name}").press("Space")
        lines = tab.locator("#overlay .keys button").all_inner_texts()
        assert sorted(lines) == ["campaign/second · ams", "first · one_time"]  # the best method of each, no bound
        tab.locator("#overlay .chart").press("End")
        assert re.search(
            r"first · one_time \S+ ?.*campaign/second · ams", tab.locator("#overlay .reading").inner_text()
        )
        tab.locator("#overlay .keys button").first.press("Enter")
        assert tab.locator("#overlay .curve").count() == 1
        tab.get_by_role("link", name="first").press("Enter")
        tab.wait_for_url("**/first/report.html")
        assert seen.faults == []


@needs_chromium
@pytest.mark.slow
def test_the_page_fits_every_window_and_requests_nothing(folder, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    pages = [write_board(one)[0] for one in (folder, empty)]
    with chromium() as browser:
        for page in pages:
            for width, scheme in [(width, scheme) for width in WIDTHS for scheme in SCHEMES]:
                seen = visit(browser, page, width, scheme)
                assert (seen.faults, seen.foreign(page.as_uri()), seen.unnamed()) == ([], [], []), (width, scheme)
                assert seen.overflow() <= 0, (width, scheme)
                dark = seen.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(19, 21, 24)"
                assert dark == (scheme == "dark")
        assert "There are no runs" in seen.page.locator("#shown").inner_text()


@needs_chromium
@pytest.mark.slow
def test_trials_of_a_search_are_shown(tmp_path):
    make_search(tmp_path / "runs/search", trials=14, failing=(3,))
    page, (entry,) = write_board(tmp_path / "runs")
    assert (entry.search["metric"], entry.cells, entry.health) == ("score", (13, 1, 14), "failed")
    assert entry.search["best"] == max(entry.search["trials"], key=lambda one: one[1] or 0.0)[0]
    with chromium() as browser:
        seen = visit(browser, page)
        seen.page.get_by_label("Choose search").check()
        assert seen.page.locator(TRIALS).count() == min(10, sum(one[1] is not None for one in entry.search["trials"]))
        assert "recommended" in seen.page.locator(TRIALS).first.inner_text()
        assert seen.faults == []
