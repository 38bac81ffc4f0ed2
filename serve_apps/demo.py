"""A demo device on the server's computer, started by a button of the live page."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

STOP_TIMEOUT_S = 10.0
WORKLOAD = "streets/walking_paris"


class DemoDevice:
    """At most one process of `driftlab device`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None  # of its run

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, url: str, token: str, seconds: float, cert: str = "") -> bool:
        """Start the device if none is running; return whether one is.

        The token is passed in the environment, since other users can read a command line.
        """
        with self._lock:
            if not self.running:
                self._delete_run()
                self._folder = tempfile.TemporaryDirectory(prefix="driftlab-demo-", ignore_cleanup_errors=True)
                out = Path(self._folder.name) / "run"
                command = [sys.executable, "-m", "driftlab", "device", "--server", url, "--name", "demo"]
                self._process = subprocess.Popen(
                    [*command, "--workload", WORKLOAD, "--seconds", f"{seconds:g}", "--out", str(out)],
                    env={**os.environ, "DRIFTLAB_TOKEN": token} | ({"SSL_CERT_FILE": cert} if cert else {}),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            return self.running

    def stop(self) -> bool:
        """Stop the device and return False; kill it after `STOP_TIMEOUT_S`."""
        with self._lock:
            if self._process is not None and self.running:
                self._process.terminate()
                try:
                    self._process.wait(STOP_TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    self._process.kill()
                    self._process.wait()
            self._delete_run()
            return self.running

    def _delete_run(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()
        self._folder = None
