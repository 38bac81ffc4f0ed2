"""Pages in a headless Chromium: both colour schemes, keyboard, accessible names, errors and requests."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
WIDTHS, SCHEMES = (1280, 400), ("light", "dark")
WAIT_MS = 60_000.0  # on a busy machine
LOCAL = ("data:", "blob:")  # addresses that are no request
needs_chromium = pytest.mark.skipif(not os.access(CHROMIUM, os.X_OK), reason="needs Chromium")
UNNAMED = """() => [...document.querySelectorAll('button, a, input, select, img, svg[role], [tabindex]')]
  .filter(one => one.checkVisibility() && !one.closest('[aria-hidden=true]'))
  .filter(one => !(one.getAttribute('aria-label') || one.alt || one.textContent.trim() || one.labels?.length
                   || document.getElementById(one.getAttribute('aria-labelledby'))))
  .map(one => one.outerHTML.slice(0, 120))"""


@dataclass
class Watched:
    """A page, with its errors and the addresses of its requests."""

    page: Any
    faults: list[str] = field(default_factory=list)  # errors on the console and exceptions of scripts
    requests: list[str] = field(default_factory=list)

    def foreign(self, home: str) -> list[str]:
        """List the requests that left an address: a file, or a server."""
        return [one for one in self.requests if not one.startswith((home, *LOCAL))]

    def wait_for(self, script: str) -> None:
        """Wait until an expression is true; it is evaluated from outside, as pages of a server forbid `eval`."""
        until_s = time.monotonic() + WAIT_MS / 1000
        while not self.page.evaluate(script):
            assert time.monotonic() < until_s, script
            self.page.wait_for_timeout(50)

    def unnamed(self) -> list[str]:
        """List the visible controls and pictures without an accessible name."""
        found: list[str] = self.page.evaluate(UNNAMED)
        return found

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than its window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """Start Chromium; it ends with the block."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


def visit(
    browser: Any, address: str | Path, width: int = WIDTHS[0], scheme: str = SCHEMES[0], token: str = ""
) -> Watched:
    """Open a file or an address in a new window; the token is the password of a server."""
    context = browser.new_context(
        viewport={"width": width, "height": 800},
        color_scheme=scheme,
        http_credentials={"username": "me", "password": token} if token else None,
    )
    context.set_default_timeout(WAIT_MS)
    seen = Watched(context.new_page())
    seen.page.on("pageerror", lambda error: seen.faults.append(str(error)))
    seen.page.on("console", lambda line: seen.faults.append(line.text) if line.type == "error" else None)
    seen.page.on("request", lambda request: seen.requests.append(request.url))
    seen.page.goto(address.as_uri() if isinstance(address, Path) else address)
    return seen
