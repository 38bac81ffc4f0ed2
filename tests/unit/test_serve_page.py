"""The live page in a browser: fleet, pictures, events, widths, colour schemes and keyboard."""

from __future__ import annotations

import time

import numpy as np
import pytest
from browser import SCHEMES, WAIT_MS, WIDTHS, chromium, needs_chromium, visit
from served_factory import ASKED, TOKEN, served

from driftlab.platform.field.messages import DeviceStatus, SampleMessage
from driftlab.platform.streaming.base import Sampling
from driftlab.platform.streaming.wire.samples import pack

pytestmark = [pytest.mark.slow, needs_chromium]
FOCUSED = "document.activeElement.id || document.activeElement.closest('tr').dataset.name"
STATUSES = (
    DeviceStatus(5.0, 4.0, 12.0, 0.25),
    DeviceStatus(10.0, 3.5, 14.0, 0.5, "svd.base", ((7.5, "base"), (8.0, "svd.base"))),
    DeviceStatus(40.0, 2.5, 16.0, 0.75),  # after a cut of 30 s
)


class FakeDemo:
    """The demo device without its process."""

    running = False

    def start(self, *about):
        self.running = True
        return True

    def stop(self):
        self.running = False
        return False


def wait_until(holds):
    until_s = time.monotonic() + WAIT_MS / 1000
    while not holds() and time.monotonic() < until_s:
        time.sleep(0.05)
    assert holds()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with two sessions: one without events, and one with every kind of event."""
    with served(tmp_path_factory.mktemp("served")) as one:
        client = one.client()
        one.names = [client.ask_json("POST", "/sessions", {**ASKED, "name": name})["id"] for name in ("idle", "door")]
        path = f"/sessions/{one.names[1]}"
        payload = pack(np.full((2, 32, 48, 3), 90, dtype=np.uint8), "h264").payload
        message = SampleMessage(1, 2.0, Sampling((0.75, 1.75), 2.0, codec="h264"), payload)
        client.ask("POST", f"{path}/uploads", message.encode(4.0))
        client.ask("GET", f"{path}/updates?after=0&hold_s=20")
        client.ask("POST", f"{path}/resync", b"")
        for status in STATUSES:
            client.ask("POST", f"{path}/report", status.encode().encode())
        yield one


@pytest.fixture(scope="module")
def browser():
    with chromium() as one:
        yield one


def opened(browser, server, width=WIDTHS[0], scheme=SCHEMES[0]):
    seen = visit(browser, server.url, width, scheme, TOKEN)
    seen.wait_for("document.getElementById('truth').naturalWidth === 48")
    return seen


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_it_fits_every_window_and_requests_nothing_elsewhere(server, browser, width, scheme):
    seen = opened(browser, server, width, scheme)
    assert (seen.faults, seen.foreign(server.url), seen.unnamed()) == ([], [], [])
    assert seen.overflow() <= 0
    small = "[...document.querySelectorAll('header button, #sessions button')].filter(one => one.offsetHeight < 44)"
    assert seen.page.evaluate(f"{small}.length") == 0
    shown = seen.page.locator("#frame").bounding_box()["width"]
    assert shown >= (300 if width > 1000 else 0.85 * width)
    assert seen.page.locator("#classes li").all_inner_texts()[:2] == ["road", "sidewalk"]


def test_score_and_events_are_on_one_time_line(server, browser):
    tab = opened(browser, server).page
    keys = tab.locator("#scores .keys button").all_inner_texts()
    kinds = ["upload", "update", "reset to all weights", "switch of network", "link cut"]
    assert [key for key in keys if key in kinds] == kinds
    cut = tab.locator("#scores line.mark")
    assert cut.count() == 1
    assert "10: until 40" in cut.locator("title").text_content()
    reading = tab.locator("#scores .reading")
    tab.locator("#scores .chart").press("End")
    assert "device, on its frames 0.75" in reading.inner_text()
    tab.locator("#scores .chart").press("Home")
    assert reading.inner_text().startswith("5 · device, on its frames 0.25") or "network" in reading.inner_text()
    assert "frames per second 2.5" in tab.locator("#rates .chart").get_attribute("aria-label")
    assert "prediction time 16" in tab.locator("#delays .chart").get_attribute("aria-label")


def test_the_fleet_names_every_session_with_its_state(server, browser):
    tab = opened(browser, server).page
    rows = {row.get_attribute("data-name"): row.inner_text() for row in tab.locator("#sessions tbody tr").all()}
    idle, door = (rows[name] for name in server.names)
    assert idle.startswith("idle · ")
    assert "opening" in idle
    assert door.startswith("door · ")
    assert "finished" in door  # its stream has 12 s
    assert " s" in door
    facts = dict(text.split("\n") for text in tab.locator("#fleet div").all_inner_texts())
    assert (facts["Sessions"], facts["Active"]) == ("2", "1")


def test_it_works_by_keyboard_and_without_a_reload(server, browser):
    server.app.api.state.demo = demo = FakeDemo()
    seen = opened(browser, server)
    focused = []
    for _ in range(4):
        seen.page.keyboard.press("Tab")
        focused.append(seen.page.evaluate(FOCUSED))
        seen.page.keyboard.press("Enter")
        if focused[-1] in ("start", "stop"):
            expected = focused[-1] == "start"
            wait_until(lambda: demo.running == expected)  # noqa: B023  it is called here
        else:
            seen.page.wait_for_selector(f"tr[data-name='{focused[-1]}'][aria-current=true]")
    assert focused == ["start", "stop", *server.names]
    before = seen.page.locator("#facts").inner_text()
    status = DeviceStatus(45.0, 3.0, 18.0, 0.625)
    server.client().ask("POST", f"/sessions/{server.names[1]}/report", status.encode().encode())
    seen.wait_for("document.getElementById('facts').innerText.includes('0.625')")
    assert "0.625" not in before
    assert seen.faults == []


def test_a_stopped_server_is_named(tmp_path, browser):
    with served(tmp_path / "served") as server:
        seen = visit(browser, server.url, token=TOKEN)
        seen.page.get_by_text("There is no session").wait_for()
    seen.page.get_by_role("alert").filter(has_text="The server does not answer").wait_for()
