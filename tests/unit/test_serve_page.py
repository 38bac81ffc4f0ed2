"""The live page in a browser: on a phone, by keyboard, and by itself."""

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
    """The device of the button, without its process."""

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


def test_the_page_serves_a_phone_and_a_keyboard(tmp_path):
    with served(tmp_path / "served") as server, browser(tmp_path / "profile") as tab:
        server.app.state.demo = demo = FakeDemo()
        client = server.client()
        session = client.ask_json("POST", "/sessions", ASKED)
        tab.open(server.url, TOKEN, PHONE)
        tab.wait_for(f"document.querySelector('li[data-name=\"{session['id']}\"]') !== null")
        body, path = upload(session)
        client.ask("POST", path, body)
        tab.wait_for("!document.getElementById('truth').hidden && document.getElementById('truth').naturalWidth === 48")
        tab.wait_for("document.querySelectorAll('#plot polyline').length === 2")  # by itself
        assert tab.value("document.documentElement.scrollWidth") <= PHONE
        small = "[...document.querySelectorAll('button')].filter(one => one.offsetHeight < 44).length"
        assert tab.value(small) == 0
        found = []
        for _ in range(3):
            tab.press("Tab")
            found.append(tab.value(FOCUSED))
            tab.press("Enter")
            if found[-1] in ("start", "stop"):
                wanted, until_s = found[-1] == "start", time.monotonic() + WAIT_S
                while demo.running != wanted and time.monotonic() < until_s:
                    time.sleep(0.05)
                assert demo.running == wanted
        assert found == ["start", "stop", session["id"]]
        elsewhere = "performance.getEntriesByType('resource').filter(one => !one.name.startsWith(location.origin)"
        assert tab.value(f"{elsewhere} && !one.name.startsWith('blob:') && !one.name.startsWith('data:')).length") == 0
