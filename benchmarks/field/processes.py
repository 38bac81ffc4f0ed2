"""The processes of the campaigns: a server without Ray, and devices; each ends with this one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from driftlab.platform.field.client import Client, ServerAway
from driftlab.serve_apps.deployment import TOKEN_VARIABLE

TOKEN = "a token of the campaigns"
START_S = 240.0  # on a busy machine
ROOT = Path(__file__).resolve().parents[2]


def spawned(*words: str, log: Path) -> subprocess.Popen[str]:
    """Start a Python process whose output goes into a file."""
    environment = {**os.environ, TOKEN_VARIABLE: TOKEN, "OMP_NUM_THREADS": "1"}
    with log.open("a", encoding="utf-8") as file:
        return subprocess.Popen(
            [sys.executable, *words], stdout=file, stderr=subprocess.STDOUT, text=True, env=environment, cwd=ROOT
        )


class ServerProcess:
    """A server that can be killed and started again on its port and folder."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self.folder = folder
        self.start()

    def start(self) -> None:
        log = self.folder / "server.log"
        self.process = spawned("-m", "benchmarks.field.server", str(self.port), str(self.folder / "kept"), log=log)
        until_s = time.monotonic() + START_S
        while True:
            try:
                Client(self.url, TOKEN, timeout_s=5.0).ask("GET", "/healthz")
                return
            except ServerAway as error:
                if self.process.poll() is not None or time.monotonic() > until_s:
                    raise RuntimeError(log.read_text(encoding="utf-8")[-2000:]) from error
                time.sleep(0.1)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def client(self, token: str = TOKEN) -> Client:
        return Client(self.url, token)
