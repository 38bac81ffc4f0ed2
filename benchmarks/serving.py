"""Measure a server with devices against the same work without a server; prints JSON lines.

* predictions: images per second and times with 1, 10 and 50 clients, encoded, as pixels, and eight images in a request,
  against the same batches in this process and against a Ray Serve deployment without a network: medians of interleaved
  rounds. Load and server share this machine's cores, so processor times are printed as well. Goals: at most 3 ms more
  than in this process with one client; with 50 clients at least half of its throughput with one image in a request, and
  0.9 with eight.
* http: requests per second of this HTTP server with an application that only reads the body, which limits predictions.
* sessions: the number of sessions that the measured rounds per second can serve at an interval of 10 s, and the number
  that two cores can serve by the processor time of a round. Goal: 100.
* replicas: images per second of two sessions on two replicas, against two on one of them, in turn; then the same with
  Ray Serve's proxies, as on a cluster. The network takes most of the time. Goal: at least 1.7 times. One process that
  only predicts, and two of them, show the limit of the computer.
* camera: time from a frame to its prediction on a device, against a loop of camera and network. Goal: at most 1.1.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import re
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

import cv2
import numpy as np
import psutil
from _load import Posted, measure_requests, server_cpu_s
from _shared import options_of, report
from starlette.types import Receive, Scope, Send

from driftlab.errors import DriftlabError
from driftlab.platform.core.seeding import rng_for
from driftlab.platform.field.agent import Agent
from driftlab.platform.field.client import BUILD_S, Client
from driftlab.platform.field.messages import SampleMessage
from driftlab.platform.field.request import parse_session_request
from driftlab.platform.field.ticket import join
from driftlab.platform.lab.seal import create_run
from driftlab.platform.networks.named import task_of
from driftlab.platform.sim.host import keep_freed_memory, use_one_thread
from driftlab.platform.streaming.base import Sampling
from driftlab.platform.streaming.wire.samples import pack
from driftlab.serve_apps.hosting import HostedSession
from driftlab.serve_apps.http_server import HttpServer, ServerAddress
from driftlab.serve_apps.quotas import Limits
from driftlab.serve_apps.routes import ServerApp
from driftlab.serve_apps.sessions import SessionRegistry

TOKEN, RATE, INTERVAL_S = "a token of a benchmark", 1e6, 10.0
BATCH, UPLOAD_FRAMES = 32, 10
ROUNDS = 3  # of interleaved measurements
REPLICA_ROUNDS = 5  # of one replica, two, and processes without a server
BETWEEN_S = 0.15  # bursts of requests before those that are measured: a session may send so many bytes per second
CORES = 2
SIZE = (32, 48)
PARTS = ("predictions", "http", "camera", "sessions", "replicas")
GOALS = {"more_ms": 3.0, "throughput": 0.5, "throughput_of_eight": 0.9, "sessions": 100, "camera": 1.1, "replicas": 1.7}
PIXELS = {"Content-Type": "application/x-rgb", "Accept": "application/octet-stream"}
FORMATS: tuple[tuple[str, int, dict[str, str]], ...] = (("png", 1, {}), ("pixels", 1, PIXELS), ("pixels", 8, PIXELS))


@dataclass(frozen=True)
class Student:
    """A network that predicts images, and their size."""

    network: str = "half"
    size: tuple[int, int] = SIZE

    def request(self, duration_s: float = 86_400.0, fps: float = 4.0) -> dict[str, Any]:
        """Return the request for a session."""
        height, width = self.size
        stream = {"name": "streets/running", "duration_s": duration_s, "fps": fps, "height": height, "width": width}
        return {"system": "ams", "workload": stream, "student": {"network": self.network, "pretrain_steps": 2}}

    def printed(self) -> dict[str, str]:
        """Return the columns of a line."""
        return {"network": self.network, "size": "x".join(map(str, self.size))}


SMALL, LARGE = Student(), Student("deeplabv3_mobilenet_v2", (480, 640))  # the large one needs .1 s for an image


def size_of(text: str) -> tuple[int, int]:
    """Parse HEIGHTxWIDTH."""
    if not (found := re.fullmatch(r"(\d+)x(\d+)", text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not HEIGHTxWIDTH, such as 32x48")
    return int(found[1]), int(found[2])


def student_of(parser: argparse.ArgumentParser, options: argparse.Namespace, default: Student) -> Student:
    """Return the student of these options, if a server accepts it."""
    student = Student(options.network or default.network, options.size or default.size)
    try:
        task_of(student.network)
        parse_session_request(student.request())
    except DriftlabError as error:
        parser.error(str(error))
    return student


@contextlib.contextmanager
def on_serve(folder: Path, sessions: int) -> Iterator[tuple[str, Callable[[], str] | None]]:
    """Serve on Ray Serve; the second value is a function that deploys an echo and returns its URL."""
    from driftlab.serve_apps import deployment

    with socket.create_server(("127.0.0.1", 0)) as free, socket.create_server(("127.0.0.1", 0)) as other:
        where, proxy = (ServerAddress("127.0.0.1", one.getsockname()[1]) for one in (free, other))
    start = deployment.serve.start

    def start_with_proxy(**options: Any) -> None:
        start(http_options={"host": proxy.host, "port": proxy.port}, logging_config=options["logging_config"])

    args = deployment.ServerArgs(state_dir=str(folder), token=TOKEN, max_sessions=sessions, rate_limit=RATE)
    with mock.patch.object(deployment.serve, "start", start_with_proxy), deployment.serving(args, where):
        yield where.url, lambda: _echo(proxy.url)


def _echo(url: str) -> str:
    from ray import serve
    from starlette.requests import Request

    @serve.deployment(max_ongoing_requests=400, ray_actor_options={"num_cpus": 0.1})
    class Echo:
        async def __call__(self, request: Request) -> dict[str, int]:
            return {"bytes": len(await request.body())}

    serve.run(Echo.bind(), name="echo", route_prefix="/echo")  # type: ignore[attr-defined]
    return url


@contextlib.contextmanager
def on_uvicorn(folder: Path, sessions: int) -> Iterator[tuple[str, Callable[[], str] | None]]:
    """Serve without Ray."""
    registry = SessionRegistry(folder, TOKEN, Limits(max_sessions=sessions, rate_limit=RATE))
    app = ServerApp(lambda: registry, child_networks=sessions)
    server = HttpServer(app, ServerAddress("127.0.0.1", 0))
    try:
        yield f"http://127.0.0.1:{server.port}", None
    finally:
        server.close()
        app.batches.close()
        registry.close()


# Predictions ----------------------------------------------------------------------------------------------------------


def bare(session: HostedSession, image: np.ndarray[Any, Any], clients: int, requests: int) -> dict[str, float]:
    """Predict as many images in this process, in batches as large as the clients allow."""
    batch = min(clients, BATCH)
    images, took_s = np.repeat(image[None], batch, axis=0), []
    session.predict(images)
    cpu_s = time.process_time()
    for _ in range(max(3, requests // batch)):
        began_s = time.perf_counter()
        session.predict(images)
        took_s.append(time.perf_counter() - began_s)
    cpu_ms = (time.process_time() - cpu_s) / len(took_s) / batch * 1e3
    return {"per_s": batch / statistics.fmean(took_s), "p50_ms": statistics.median(took_s) * 1e3, "cpu_ms": cpu_ms}


def predictions(
    url: str, folder: Path, echo: Callable[[], str] | None, student: Student, options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    client, requests, wanted = Client(url, TOKEN, timeout_s=BUILD_S), options.requests, student.request()
    opened = client.ask_json("POST", "/sessions", wanted)
    image = rng_for(0, "benchmark").integers(0, 255, (*student.size, 3)).astype(np.uint8)
    encoded, echoed = cv2.imencode(".png", image)[1].tobytes(), None if echo is None else echo()
    session = HostedSession(folder / "bare", parse_session_request(wanted))
    loaded_s = options.loaded_s
    for clients, (form, count, headers) in itertools.product(options.clients, FORMATS):
        body = encoded if form == "png" else count * image.tobytes()
        owned = {"Authorization": f"Bearer {opened['token']}", **headers}
        sent = Posted(url, f"/sessions/{opened['id']}/predict", body, owned, count)
        measure_requests(sent, clients, clients)
        until_s = time.monotonic() + loaded_s
        while count > 1 and clients == max(options.clients) and time.monotonic() < until_s:
            measure_requests(sent, clients, 2 * count * clients)
            time.sleep(BETWEEN_S)
            loaded_s = 0.0
        turns = []
        for _ in range(ROUNDS):
            ours = measure_requests(sent, clients, requests // ROUNDS)
            plain = replace(sent, url=echoed, path="/echo") if echoed else None
            other = {} if plain is None else measure_requests(plain, clients, requests // ROUNDS // 10)  # it is slow
            turns.append((ours, bare(session, image, clients * count, requests // ROUNDS), other))
        ours, alone, other = (medians(found) for found in zip(*turns, strict=True))
        yield {
            "benchmark": "serving-predictions",
            "clients": clients,
            "format": form,
            "images": count,
            **student.printed(),
            **rounded(ours),
            "bare": rounded(alone),
            "echo": rounded(other),
            "more_ms": round(ours["p50_ms"] - alone["p50_ms"], 2),
            "throughput": round(ours["per_s"] / alone["per_s"], 3),
            "throughput_by_cpu": round(alone["cpu_ms"] / ours["cpu_ms"], 3),  # as if no client used the server's cores
            **({"throughput_of_echo": round(ours["per_s"] / other["per_s"], 3)} if other else {}),
            **({"more_than_echo_ms": round(ours["p50_ms"] - other["p50_ms"], 2)} if other else {}),
            "goals": GOALS,
        }


async def read_all(scope: Scope, receive: Receive, send: Send) -> None:
    """Read the body of a request, and reply with one byte."""
    while (await receive()).get("more_body", False):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1")]})
    await send({"type": "http.response.body", "body": b"0"})


def http(clients: int, requests: int) -> dict[str, Any]:
    server = HttpServer(read_all, ServerAddress("127.0.0.1", 0))
    try:
        sent = Posted(f"http://127.0.0.1:{server.port}", "/", bytes(3 * SIZE[0] * SIZE[1]), {})
        measure_requests(sent, clients, clients)
        turns = [measure_requests(sent, clients, requests) for _ in range(ROUNDS)]
    finally:
        server.close()
    found = medians(turns)
    return {"benchmark": "serving-http", "clients": clients, **rounded(found), "cpu_ms": round(found["cpu_ms"], 4)}


def medians(found: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(one[name] for one in found) for name in found[0]}


def rounded(found: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 2) for name, value in found.items()}


# Replicas ------------------------------------------------------------------------------------------------------------


def replicas(folder: Path, student: Student, requests: int, proxies: bool) -> dict[str, Any]:
    """Return the speed of two replicas over that of one of them, with Ray Serve's proxies or without.

    Two processes that only predict show the limit of the computer.
    """
    from driftlab.serve_apps import deployment

    with socket.create_server(("127.0.0.1", 0)) as free:
        where = ServerAddress("127.0.0.1", free.getsockname()[1])
    most = 2 + proxies  # if the number of replicas may grow, proxies count the requests
    state = folder / f"replicas-{proxies}"
    args = deployment.ServerArgs(state_dir=str(state), token=TOKEN, rate_limit=RATE, replicas=2, max_replicas=most)
    pool = ProcessPoolExecutor(2, get_context("spawn"), use_one_thread)
    with deployment.serving(args, where), pool as processes:
        (one, beside), (other, *_) = _sessions_of_replicas(state, student, where)
        sides: dict[str, Callable[[], float]] = {
            "two": lambda: _speed_of((one, other), requests),
            "two_bare": lambda: _bare_speed(processes, folder, student, [requests, requests]),
            "one": lambda: _speed_of((one, beside), requests),
            "one_bare": lambda: _bare_speed(processes, folder, student, [2 * requests]),
        }
        sides["two"](), sides["two_bare"]()  # warm up
        rounds = [{side: speed() for side, speed in sides.items()} for _ in range(REPLICA_ROUNDS)]
    per_s = {side: round(statistics.median(found[side] for found in rounds), 1) for side in sides}
    ours = sorted(found["two"] / found["one"] for found in rounds)
    bare = sorted(found["two_bare"] / found["one_bare"] for found in rounds)
    return {
        "benchmark": "serving-replicas",
        **student.printed(),
        "proxies": proxies,
        "per_s": per_s,
        "speedups": [round(speedup, 2) for speedup in ours],
        "speedup": round(statistics.median(ours), 2),
        "speedups_of_processes": [round(speedup, 2) for speedup in bare],
        "of_processes": round(statistics.median(ours) / statistics.median(bare), 3),
        "goal": GOALS["replicas"],
    }


def _bare_speed(pool: ProcessPoolExecutor, folder: Path, student: Student, images: Sequence[int]) -> float:
    """Return the images per second of processes that only predict, each so many images."""
    return sum(pool.map(_predict_bare, itertools.repeat(folder), itertools.repeat(student), images))


def _predict_bare(folder: Path, student: Student, images: int) -> float:
    """Predict in a process of a pool; return the images per second."""
    session, image = _bare_session(folder / f"bare-{os.getpid()}", student), np.zeros((1, *student.size, 3), np.uint8)
    began_s = time.perf_counter()
    for _ in range(images):
        session.predict(image)
    return images / (time.perf_counter() - began_s)


@cache
def _bare_session(folder: Path, student: Student) -> HostedSession:
    """Return the session of this process."""
    keep_freed_memory()
    session = HostedSession(folder, parse_session_request(student.request()))
    session.predict(np.zeros((1, *student.size, 3), np.uint8))
    return session


def _sessions_of_replicas(folder: Path, student: Student, where: ServerAddress) -> list[list[Posted]]:
    """Open sessions until each of two replicas has two; return a request for each."""
    from driftlab.serve_apps.shards import replica_of, shard_of

    client = Client(where.url, TOKEN, timeout_s=BUILD_S)
    living = {file.name.removeprefix("replica-")[:16] for file in folder.glob("replica-*")}
    sent: dict[str, list[Posted]] = {name: [] for name in living}
    while min(map(len, sent.values())) < 2:
        opened = client.ask_json("POST", "/sessions", student.request())
        body = rng_for(0, "benchmark").integers(0, 255, (*student.size, 3)).astype(np.uint8).tobytes()
        owned = {"Authorization": f"Bearer {opened['token']}", **PIXELS}
        of = sent[replica_of(shard_of(opened["id"]), living)]
        of.append(Posted(where.url, f"/sessions/{opened['id']}/predict", body, owned))
    return [of[:2] for of in sent.values()]


def _speed_of(sent: Sequence[Posted], requests: int) -> float:
    """Return the images per second of all sessions together, each of which has four clients."""
    with ThreadPoolExecutor(len(sent)) as pool:
        return sum(each["per_s"] for each in pool.map(lambda one: measure_requests(one, 4, requests), sent))


# Sessions -------------------------------------------------------------------------------------------------------------


def upload(number: int) -> bytes:
    """Pack an upload of the usual number of frames."""
    times_s = tuple(number * INTERVAL_S + frame for frame in range(UPLOAD_FRAMES))
    images = rng_for(0, "benchmark", number).integers(0, 255, (UPLOAD_FRAMES, 32, 48, 3)).astype(np.uint8)
    sampling = Sampling(times_s, times_s[-1] + 1.0, codec="h264")
    return SampleMessage(number, times_s[-1] + 1.0, sampling, pack(images, "h264").payload).encode(4.0)


def idle_cores(seconds: float = 5.0) -> float:
    """Return the processor time per second of the server's processes without requests."""
    if not psutil.Process().children():
        return 0.0  # the server is in this process, which sleeps
    cpu_s, began_s = server_cpu_s(), time.monotonic()
    time.sleep(seconds)
    return (server_cpu_s() - cpu_s) / (time.monotonic() - began_s)


def bare_round_s(folder: Path, rounds: int) -> float:
    """Return the processor time of a round in this process, without a server; the first round is left out."""
    session, took_s = HostedSession(folder / "rounds", parse_session_request(SMALL.request())), []
    for number in range(1, rounds + 2):
        session.upload(upload(number))
        cpu_s = time.process_time()
        session.work()
        took_s.append(time.process_time() - cpu_s)
    return statistics.median(took_s[1:])


def sessions(url: str, folder: Path, count: int, seconds: float, rounds_alone: int) -> dict[str, Any]:
    """Keep an upload waiting in each of some sessions, and count the server's rounds."""
    client, waits_s, rounds = Client(url, TOKEN), [], 0
    names = [client.ask_json("POST", "/sessions", SMALL.request())["id"] for _ in range(count)]
    for name in names:  # the first round of a session builds its learner
        client.ask("POST", f"/sessions/{name}/uploads", upload(1))
        client.ask("GET", f"/sessions/{name}/updates?after=0&hold_s=30")
    idle = idle_cores()
    sent = dict.fromkeys(names, 1)
    stop_s = time.monotonic() + seconds

    def play(name: str) -> None:
        nonlocal rounds
        player = client.another()
        while time.monotonic() < stop_s:
            sent[name] += 1
            began_s = time.monotonic()
            player.ask("POST", f"/sessions/{name}/uploads", upload(sent[name]))
            while not player.ask("GET", f"/sessions/{name}/updates?after={sent[name] - 1}&hold_s=20"):
                if time.monotonic() > stop_s:
                    return
            waits_s.append(time.monotonic() - began_s)
            rounds += 1

    threads, cpu_s = [threading.Thread(target=play, args=(name,)) for name in names], server_cpu_s()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    held = rounds / seconds * INTERVAL_S
    wait_s = float(np.percentile(waits_s, 95)) if waits_s else None
    done = sum(client.ask_json("GET", f"/sessions/{name}")["results"] for name in names) - count
    round_s = max(1e-6, server_cpu_s() - cpu_s - idle * (time.monotonic() - stop_s + seconds)) / max(1, done)
    found = {"rounds_per_s": round(rounds / seconds, 2), "sessions_at_10_s": round(held, 1)}
    held = (CORES - idle) * INTERVAL_S / round_s
    found |= {"idle_cores": round(idle, 3), "cpu_s": round(round_s, 3), "sessions_by_cpu": round(held, 1)}
    bare_s = bare_round_s(folder, rounds_alone)
    found |= {"bare_cpu_s": round(bare_s, 3), "bare_sessions_by_cpu": round(CORES * INTERVAL_S / bare_s, 1)}
    return {
        "benchmark": "serving-sessions",
        "asked": count,
        **found,
        "wait_p95_s": wait_s and round(wait_s, 2),
        "goal": GOALS["sessions"],
    }


# Camera ---------------------------------------------------------------------------------------------------------------


def camera(url: str, folder: Path, seconds: float) -> dict[str, Any]:
    """Play a stream on a device, and the same frames in a loop of camera and network alone."""
    agent = Agent(join(url, TOKEN, parse_session_request(SMALL.request(duration_s=seconds, fps=8.0))))
    with create_run(agent.cell.experiment, folder / "run") as directory:
        agent.begin(directory)
        our_cpu_s = time.thread_time()
        agent.run()
        our_cpu_s = time.thread_time() - our_cpu_s
    rows = agent.cell.runner.ledger.rows["frames"]
    ours = [ms for part in rows for ms in np.atleast_1d(part["latency_ms"]).tolist() if np.isfinite(ms)]
    app, session, took_s = agent.cell.app, agent.cell.runner.session, []
    began_s, cpu_s = time.monotonic(), time.thread_time()
    for frame in range(int(seconds * 8)):
        shown_s = began_s + frame / 8
        time.sleep(max(0.0, shown_s - time.monotonic()))
        frames = session.call(app.node("device"), "capture", frame / 8, (frame + 0.5) / 8)
        session.call(app.node("application"), "predict_images", frames.reply.payload.images)  # type: ignore[attr-defined]
        took_s.append(time.monotonic() - shown_s)
    alone_ms, our_ms = statistics.median(took_s) * 1e3, statistics.median(ours)
    found = {"p50_ms": round(our_ms, 2), "bare_p50_ms": round(alone_ms, 2), "ratio": round(our_ms / alone_ms, 3)}
    cpu = our_cpu_s / len(ours), (time.thread_time() - cpu_s) / len(took_s)  # other programs hardly change these
    found |= {"cpu_ms": round(cpu[0] * 1e3, 2), "bare_cpu_ms": round(cpu[1] * 1e3, 2)}
    return {"benchmark": "serving-camera", **found, "goal": GOALS["camera"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 10, 50])
    parser.add_argument("--size", type=size_of, help="HEIGHTxWIDTH of images; 32x48, for replicas 480x640")
    parser.add_argument("--network", help="student; half, for replicas deeplabv3_mobilenet_v2")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="parts to measure")
    parser.add_argument("--sessions", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=6, help="of a session without a server")
    parser.add_argument("--server", choices=("serve", "uvicorn"), default="serve")
    parser.add_argument(
        "--loaded-s", type=float, default=12.0, help="seconds of load, in which a second process starts"
    )
    quick = {"loaded_s": 0.0, "requests": 2, "clients": [2], "sessions": 1, "seconds": 0.5, "rounds": 1}
    quick |= {"server": "uvicorn", "parts": PARTS[:-1]}
    options = options_of(parser, **quick)
    small, large = (student_of(parser, options, default) for default in (SMALL, LARGE))
    with tempfile.TemporaryDirectory(prefix="driftlab-bench-", ignore_cleanup_errors=True) as place:
        folder = Path(place)
        serving = on_serve if options.server == "serve" else on_uvicorn
        if "http" in options.parts:
            report(http(max(options.clients), options.requests))
        if "replicas" in options.parts:
            for proxies in (False, True):
                report(replicas(folder, large, max(4, options.requests // 10), proxies))
        with serving(folder / "kept", options.sessions + 2) as (url, echo):
            for line in predictions(url, folder, echo, small, options) if "predictions" in options.parts else ():
                report(line)
            if "camera" in options.parts:
                report(camera(url, folder, options.seconds))
            if "sessions" in options.parts:
                report(sessions(url, folder, options.sessions, options.seconds, options.rounds))


if __name__ == "__main__":
    main()
