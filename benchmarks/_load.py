"""The load of a server: requests from several clients at once, and the processor time they take."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

CLIENTS = str(Path(__file__).with_name("_clients.py"))


def server_cpu_s() -> float:
    """Return the processor time of the child processes, and of this one if it is the server: without Ray."""
    names, used_s = [], []
    for one in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            names.append(one.name())
            used_s.append(sum(one.cpu_times()[:2]))
    return sum(used_s) + (0.0 if "raylet" in names else time.process_time())


@dataclass(frozen=True)
class Posted:
    """A request for predictions: its body, its headers and the number of its images."""

    url: str
    path: str
    body: bytes
    headers: dict[str, str]
    images: int = 1


def measure_requests(sent: Posted, clients: int, requests: int) -> dict[str, float]:
    """Send requests from several clients at once; return the rate of images, and their times."""
    head = f"POST {sent.path} HTTP/1.1\r\nHost: server\r\nContent-Length: {len(sent.body)}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in sent.headers.items())
    message, each = f"{head}\r\n".encode() + sent.body, max(1, requests // clients // sent.images)
    port = int(sent.url.rpartition(":")[2])
    asked = {"port": port, "bytes": len(message), "clients": clients, "requests": each}
    cpu_s = server_cpu_s()
    given = json.dumps(asked).encode() + b"\n" + message
    done = subprocess.run([sys.executable, CLIENTS], input=given, stdout=subprocess.PIPE, check=True, timeout=600)
    cpu_s, found = server_cpu_s() - cpu_s, json.loads(done.stdout)
    took_s = found["took_s"]
    per_s = sent.images * len(took_s) / found["seconds"]
    times_ms = {f"p{q}_ms": float(np.percentile(took_s, q)) * 1e3 for q in (50, 99)}
    return {"per_s": per_s, **times_ms, "cpu_ms": max(1e-6, cpu_s) / len(took_s) / sent.images * 1e3}
