"""A headless Chromium, driven over its own protocol."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import subprocess
import time
import urllib.request

from websockets.sync.client import connect

START_S, WAIT_S = 60.0, 60.0  # on a busy machine
KEYS = {"Tab": 9, "Enter": 13}


class Browser:
    """One tab."""

    def __init__(self, line):
        self._line, self._numbers = line, itertools.count(1)

    def ask(self, method, **parameters):
        """Send a command and return its result; events in between are dropped."""
        number = next(self._numbers)
        self._line.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while (told := json.loads(self._line.recv(WAIT_S))).get("id") != number:
            pass
        assert "error" not in told, told
        return told["result"]

    def open(self, url, token, width=1200):
        """Open a page with a token as the password, in a window as wide as a phone's where asked."""
        given = base64.b64encode(f"me:{token}".encode()).decode()
        self.ask("Network.enable")
        self.ask("Network.setExtraHTTPHeaders", headers={"Authorization": f"Basic {given}"})
        phone = {"width": width, "height": 740, "deviceScaleFactor": 1, "mobile": width < 600}
        self.ask("Emulation.setDeviceMetricsOverride", **phone)
        self.ask("Page.navigate", url=url)

    def value(self, script):
        return self.ask("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def wait_for(self, script):
        """Wait until a script's value is true, and return it."""
        until_s = time.monotonic() + WAIT_S
        while not (found := self.value(script)):
            assert time.monotonic() < until_s, script
            time.sleep(0.1)
        return found

    def press(self, key):
        about = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
        self.ask("Input.dispatchKeyEvent", type="keyDown", **about, **({"text": "\r"} if key == "Enter" else {}))
        self.ask("Input.dispatchKeyEvent", type="keyUp", **about)


@contextlib.contextmanager
def browser(folder):
    """Start Chromium with a temporary profile."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", f"--user-data-dir={folder}"]
    process = subprocess.Popen(
        ["chromium", *options, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until_s, file = time.monotonic() + START_S, folder / "DevToolsActivePort"
        while not (file.exists() and file.read_text().count("\n")):
            assert time.monotonic() < until_s, "Chromium did not start"
            time.sleep(0.1)
        port = file.read_text().splitlines()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=START_S) as reply:
            pages = [one for one in json.load(reply) if one["type"] == "page"]
        with connect(pages[0]["webSocketDebuggerUrl"], max_size=None, proxy=None) as line:
            yield Browser(line)
    finally:
        process.kill()
        process.wait()
