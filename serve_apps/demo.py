"""A device in a process of its own on the server's machine, for the button of the page."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

STOP_S = 10.0
WORKLOAD = "streets/walking_paris"


class DemoDevice:
    """At most one process, which this object started and stops."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, url: str, token: str, seconds: float, cert: str = "") -> bool:
        """Start the device if it does not run; its token goes by the environment, which other users cannot read."""
        with self._lock:
            if not self.running:
                out = Path(tempfile.mkdtemp(prefix="driftlab-demo-")) / "run"
                command = [sys.executable, "-m", "driftlab", "device", "--server", url, "--workload", WORKLOAD]
                self._process = subprocess.Popen(
                    [*command, "--seconds", f"{seconds:g}", "--out", str(out)],
                    env={**os.environ, "DRIFTLAB_TOKEN": token} | ({"SSL_CERT_FILE": cert} if cert else {}),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            return self.running

    def stop(self) -> bool:
        """Stop the device."""
        with self._lock:
            if self._process is not None and self.running:
                self._process.terminate()
                try:
                    self._process.wait(STOP_S)
                except subprocess.TimeoutExpired:
                    self._process.kill()
                    self._process.wait()
            return self.running
