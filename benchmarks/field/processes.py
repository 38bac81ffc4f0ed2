"""Processes of the campaigns: a server with or without Ray, and devices."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import psutil

from driftlab.platform.field.client import Client, ServerUnavailable
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
    """A server without Ray that can be killed and started again on its port and folder."""

    parts: ClassVar[Mapping[str, str]] = {}  # titles of child processes, by part

    def __init__(self, folder: Path, *options: str) -> None:
        self.options = options  # of the program
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self.folder = folder
        self.start()

    def start(self) -> None:
        self.process = spawned(*self.command(), log=self.folder / "server.log")
        until_s = time.monotonic() + START_S
        while True:
            try:
                Client(self.url, TOKEN, timeout_s=5.0).ask("GET", "/healthz")
                return
            except ServerUnavailable as error:
                if self.process.poll() is not None or time.monotonic() > until_s:
                    raise RuntimeError(self.log[-2000:]) from error
                time.sleep(0.1)

    def command(self) -> list[str]:
        return ["-m", "benchmarks.field.server", str(self.port), str(self.folder / "kept"), *self.options]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def memory_mb(self) -> float:
        """Return the resident memory of the server and its child processes."""
        server = psutil.Process(self.process.pid)
        return sum(one.memory_info().rss for one in [server, *server.children(recursive=True)]) / 2**20

    @property
    def log(self) -> str:
        """Return everything that the server has printed."""
        return (self.folder / "server.log").read_text(encoding="utf-8", errors="replace")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """End the server."""
        self.kill()

    def kill_part(self, part: str) -> bool:
        """Raise an error: a server without Ray has no child processes."""
        raise ValueError(f"a server without Ray has no {part}")

    def client(self, token: str = TOKEN) -> Client:
        return Client(self.url, token)


class RayServerProcess(ServerProcess):
    """`driftlab serve`, whose replica and learners are separate processes."""

    parts: ClassVar[Mapping[str, str]] = {"replica": "ray::ServeReplica", "learner": "ray::SessionRack"}

    def command(self) -> list[str]:
        folder = str(self.folder / "kept")
        return ["-m", "driftlab", "serve", "--port", str(self.port), "--state-dir", folder, "--rate-limit", "5000"]

    def kill_part(self, part: str) -> bool:
        """Kill the processes of one kind below the server; return whether there were any."""
        killed = False
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if (process.cmdline() or [""])[0].startswith(self.parts[part]):
                    process.kill()
                    killed = True
        return killed

    def stop(self) -> None:
        """End the server and its Ray."""
        self.process.terminate()
        self.process.wait(START_S)
