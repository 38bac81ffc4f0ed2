"""The live page in a browser: narrow screen, keyboard, updates without reload."""

from __future__ import annotations

import shutil
import time

import numpy as np
import pytest
from browser_factory import WAIT_S, browser
from served_factory import ASKED, TOKEN, served

from driftlab.platform.field.messages import SampleMessage
from driftlab.platform.streaming.base import Sampling
from driftlab.platform.streaming.wire.samples import pack

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium"),
]
PHONE = 360  # pixels
FOCUSED = "document.activeElement.id || document.activeElement.parentElement.dataset.name"


class FakeDemo:
    """The demo device without its process."""

    running = False

    def start(self, *about):
        self.running = True
        return True

    def stop(self):
        self.running = False
        return False


def upload(session):
    payload = pack(np.full((2, 32, 48, 3), 90, dtype=np.uint8), "h264").payload
    body = SampleMessage(1, 2.0, Sampling((0.75, 1.75), 2.0, codec="h264"), payload).encode(4.0)
    return body, f"/sessions/{session['id']}/uploads"


def test_the_page_works_on_a_phone_and_by_keyboard(tmp_path):
    with served(tmp_path / "served") as server, browser(tmp_path / "profile") as tab:
        server.app.state.demo = demo = FakeDemo()
        client = server.client()
        session = client.ask_json("POST", "/sessions", ASKED)
        tab.open(server.url, TOKEN, PHONE)
        tab.wait_for(f"document.querySelector('li[data-name=\"{session['id']}\"]') !== null")
        body, path = upload(session)
        client.ask("POST", path, body)
        tab.wait_for("!document.getElementById('truth').hidden && document.getElementById('truth').naturalWidth === 48")
        tab.wait_for("document.querySelectorAll('#plot polyline').length === 2")  # without a reload
        assert tab.value("document.documentElement.scrollWidth") <= PHONE
        small = "[...document.querySelectorAll('button')].filter(one => one.offsetHeight < 44).length"
        assert tab.value(small) == 0
        focused = []
        for _ in range(3):
            tab.press("Tab")
            focused.append(tab.value(FOCUSED))
            tab.press("Enter")
            if focused[-1] in ("start", "stop"):
                expected, until_s = focused[-1] == "start", time.monotonic() + WAIT_S
                while demo.running != expected and time.monotonic() < until_s:
                    time.sleep(0.05)
                assert demo.running == expected
        assert focused == ["start", "stop", session["id"]]
        foreign = "performance.getEntriesByType('resource').filter(one => !one.name.startsWith(location.origin)"
        assert tab.value(f"{foreign} && !one.name.startsWith('blob:') && !one.name.startsWith('data:')).length") == 0
