"""One session on the server: stores uploads and results, predicts images, and reports its state.

An upload is on disk before it is acknowledged, and stays until a round has used it; results stay until the session
ends. A result is sent to the device only after the state that it belongs to is on disk.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import cached_property
from itertools import count
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from driftlab.errors import RunError, WireError
from driftlab.platform.core.files import write_atomically
from driftlab.platform.core.records import Reply
from driftlab.platform.field.messages import SampleMessage, decode_results, decode_samples, decode_status
from driftlab.platform.field.opening import FieldCell, dump_weights, open_on_server
from driftlab.platform.field.request import SessionRequest
from driftlab.platform.field.rounds import (
    KEPT_RESULTS,
    RESULTS,
    UPLOADS,
    NewestSample,
    RoundReply,
    RoundRequest,
    RoundsWorker,
    SessionState,
    Worker,
    payload_of,
    read_state,
    upload_files,
)
from driftlab.platform.field.state_file import dump_objects
from driftlab.platform.sim.inline import InlineSession
from driftlab.platform.sim.nodes.camera import stream_of
from driftlab.serve_apps.event_bell import EventBell
from driftlab.serve_apps.images import legend_of, pixels_of
from driftlab.serve_apps.timeline import Timeline

SESSION, RESYNC = "session.json", "resync"  # the second exists while a result with all weights is due
IDLE_TIMEOUT_S = 60.0  # after the end of its stream, a session may be replaced by a new one
MAX_WAITING, MAX_WAITING_BYTES = 8, 32 * 2**20  # uploads of one session, and bytes of those before the newest
MAX_REPLY_BYTES = 4 * 2**20  # of results in one reply, unless one result alone has more
MAX_DECODED_BYTES = 256 * 2**20  # of one upload
MAX_BATCH = 32  # images of a forward pass
# Of a forward pass on a CPU. glibc takes blocks above 32 MiB from the system for each use: in a batch of four, a VGA
# image took deeplabv3_mobilenet_v2 half as long again as alone.
CPU_BATCH_PIXELS = 2**18
GENERATIONS = count(1)  # of all sessions in this process


class UploadQueueFull(RunError):
    """The session already has the maximum number of waiting uploads."""


class SessionMoved(RunError):
    """Another replica hosts the session now, or soon; the request may be repeated."""


class HostedSession:
    """A session; `work` may be called from one thread at a time, everything else from any thread."""

    def __init__(
        self, folder: Path, asked: SessionRequest, worker: Worker | None = None, torch_device: str = "cpu"
    ) -> None:
        self.folder, self.asked, self.worker = folder, asked, worker or RoundsWorker(torch_device)
        self._session, self._device = InlineSession(), torch_device
        self.cell: FieldCell = open_on_server(asked, self._session, torch_device)
        self.app = self.cell.app
        self.progress = SessionState()
        self.shown: NewestSample | None = None
        self.waiting: deque[SampleMessage] = deque()
        self.ended, self.moved, self.fault, self.asked_all = False, False, "", False
        self.timeline, self.created = Timeline(), time.time()
        self.news = EventBell()  # rings at results and at the end
        self.on_work: Callable[[], None] = lambda: None  # called when a round is due
        self.on_use: Callable[[], None] = lambda: None  # called when the network is needed
        self.before_decoding: Callable[[int], None] = lambda size: None  # raises if the session decodes too many bytes
        self._lock, self._using, self._working = threading.Lock(), threading.Lock(), threading.Lock()
        self._taken = self._up_bytes = 0
        self.waits_since_s = 0.0  # monotonic clock at the oldest request for a round that is still waiting
        self._clock = (0.0, time.monotonic())  # the device's time, and this computer's when it was received
        self._unloaded_version = 0
        self.generation = next(GENERATIONS)  # of the network: another one after each change
        self._loaded = 0  # number of the result up to which the network was read from disk
        for name in (UPLOADS, RESULTS):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self._restore()

    # Called by routes -----------------------------------------------------------------------------------------------

    def upload(self, body: bytes) -> int:
        """Store an upload and return its number; a repeated upload is acknowledged again and ignored."""
        message = decode_samples(body, self.app.facts.fps)
        self._check(message)
        with self._lock:
            self._check_here()
            if message.number <= self.received:
                return message.number
            if message.number != self.received + 1:
                raise WireError(f"upload {message.number} does not follow upload {self.received}")
            waiting_bytes = sum(len(one.payload) for one in self.waiting)
            if len(self.waiting) >= MAX_WAITING or waiting_bytes > MAX_WAITING_BYTES:
                raise UploadQueueFull(f"{len(self.waiting)} uploads of {waiting_bytes} bytes are waiting already")
            self.before_decoding(self._decoded_bytes(message))
            write_atomically(self.folder / UPLOADS / f"{message.number:08d}", body)
            self._clock = (message.sent_s, time.monotonic())
            self.waits_since_s = self.waits_since_s if self.has_work else time.monotonic()
            self._up_bytes += len(message.payload)
            self.waiting.append(message)
            self.timeline.add_upload(message.sent_s, len(message.payload))
        self.on_work()
        return message.number

    def report(self, text: str | bytes) -> None:
        """Store a report of the device; raise WireError for any other text."""
        self.timeline.add_report(decode_status(text))

    def ask_all(self) -> int:
        """Request a result with all weights; return the number of the newest result before it."""
        with self._lock:
            self._check_here()
            self.waits_since_s = self.waits_since_s if self.has_work else time.monotonic()
            (self.folder / RESYNC).touch()
            self.asked_all = True
        self.timeline.add_resync(self.now_s())
        self.on_work()
        return self.progress.number

    def end(self) -> None:
        """Stop accepting work, and wake requests that wait for results."""
        self.ended = True
        self.news.ring()

    def leave(self) -> None:
        """Refuse work, which another replica will do, and wake requests that wait for results."""
        with self._lock:
            self.moved = True
        self.news.ring()

    @property
    def closed(self) -> bool:
        """Return whether there will be no further result here."""
        return self.ended or self.moved

    @property
    def received(self) -> int:
        """Return the number of the newest upload."""
        return self.waiting[-1].number if self.waiting else max(self.progress.used, self._taken)

    @property
    def since_upload_s(self) -> float:
        """Return the seconds since the newest upload."""
        return time.monotonic() - self._clock[1]

    def results(self, after: int) -> tuple[bytes, int] | None:
        """Return the results after a number, and the last one's number; None if some were deleted.

        They are empty if there are none yet, and have at most `MAX_REPLY_BYTES` or one result.
        """
        newest = self.progress.number
        if after < newest - KEPT_RESULTS or after > newest:
            return None
        found: list[bytes] = []
        size = 0
        for number in range(after + 1, newest + 1):
            file = self.folder / RESULTS / f"{number:08d}"
            size += file.stat().st_size
            if found and size > MAX_REPLY_BYTES:
                break
            found.append(file.read_bytes())
        return b"".join(found), after + len(found)

    def predict(self, images: np.ndarray[Any, Any]) -> tuple[int, Any]:
        """Predict images with one version of the network; return its number and the predictions."""
        self.on_use()
        with self._using:
            if not self.is_loaded:
                self._load()
            node = self.app.node("application")
            return in_passes(
                lambda some: self._session.call(node, "predict_images", some).reply, images, self.batch_images
            )

    def dump_network(self) -> tuple[int, bytes]:
        """Return the node with the network as a file, for a process that predicts, and its `generation`."""
        self.on_use()
        with self._using:
            if not self.is_loaded:
                self._load()
            return self.generation, dump_objects(self._session.nodes[self.app.node("application")])

    @property
    def batch_images(self) -> int:
        """Return the number of images of the largest forward pass."""
        fitting = CPU_BATCH_PIXELS // prod(self.app.size) if self._device == "cpu" else MAX_BATCH
        return min(MAX_BATCH, max(1, fitting))

    @property
    def is_loaded(self) -> bool:
        """Return whether the network is in memory."""
        return self.app.node("application") in self._session.nodes

    def unload(self) -> bool:
        """Release the memory of the network unless it is in use, and return whether it was not."""
        if not self._using.acquire(blocking=False):
            return False
        try:
            if self.is_loaded:
                self._unloaded_version = self._version
                del self._session.nodes[self.app.node("application")]
            return True
        finally:
            self._using.release()

    @property
    def weights(self) -> bytes:
        """Return the initial weights as safetensors."""
        return dump_weights(payload_of(self.app.networks.student.weights))

    @property
    def is_updating(self) -> bool:
        """Return whether predictions wait, for a new version of the network or for one from disk."""
        return self._using.locked() or not self.is_loaded

    def source_summary(self) -> bytes:
        """Return the adaptation's source summary as safetensors; empty if it uses none."""
        job = self.app.networks.packs.get(repr(self.cell.runner.cell.system.adaptation))
        return dump_weights({} if job is None else payload_of(job))

    def status(self) -> dict[str, Any]:
        """Return the state of the session as plain data."""
        progress, last = self.progress, self.progress.rounds[-1] if self.progress.rounds else None
        plan = {"rate_fps": last.row.get("rate_fps"), "interval_s": last.row.get("interval_s")} if last else {}
        workload, device = self.asked.workload, self.timeline.newest
        return {
            "name": self.asked.name or f"seed {self.asked.seed}",
            "state": self.state,
            "age_s": round(time.time() - self.created),
            "device": None if device is None else vars(device),
            "duration_s": workload.duration_s,
            "system": self.cell.runner.cell.system.name,
            "workload": workload.name,
            "network": self.app.networks.student.name,
            "task": self.app.networks.task.name,
            "size": [workload.height, workload.width],
            "fps": workload.fps,
            "time_s": round(self.device_s(), 3),
            "uploads": self.received,
            "waiting": len(self.waiting),
            "results": progress.number,
            "version": self._version,
            "up_bytes": self._up_bytes,
            "down_bytes": progress.down_bytes,
            "plan": plan,
            "score": last.score if last else None,
            "ended": self.ended,
            "fault": self.fault,
        }

    def events(self) -> dict[str, Any]:
        """Return events and scores over time, the available images, and the classes with their colours."""
        images = [] if self.shown is None else list(pixels_of(self.shown))
        return {**self.timeline.document(list(self.progress.rounds)), "images": images, "classes": self._legend}

    @cached_property
    def _legend(self) -> list[tuple[str, str]]:
        return legend_of(stream_of(self.app.spec.stream).classes)

    @property
    def state(self) -> str:
        """Return failed, finished, silent (no reports), training, waiting (for a round), running or opening."""
        begun, time_s = bool(self.received or self.timeline.reports), self.device_s()
        if self.fault:
            return "failed"
        if self.ended or (begun and time_s > self.app.facts.duration_s):
            return "finished"
        if self.timeline.is_silent:
            return "silent"
        if self._working.locked():
            return "training"
        return "waiting" if self.has_work else "running" if begun else "opening"

    def device_s(self) -> float:
        """Return the device's time, extrapolated from its newest report or upload."""
        newest, heard_s = self.timeline.newest, self.timeline.heard_s
        return max(self.now_s(), newest.time_s + time.monotonic() - heard_s) if newest and heard_s else self.now_s()

    def history(self) -> list[dict[str, Any]]:
        """Return the training rounds as plain data."""
        return [vars(one) for one in self.progress.rounds]

    @property
    def over(self) -> bool:
        """Return whether it was ended, or its stream did so `IDLE_TIMEOUT_S` ago and every upload was used."""
        return self.ended or (self.now_s() > self.app.facts.duration_s + IDLE_TIMEOUT_S and not self.has_work)

    def now_s(self) -> float:
        """Return the device's time, extrapolated from its newest upload."""
        device_s, received_s = self._clock
        return device_s + (time.monotonic() - received_s)

    def idle(self) -> threading.Lock:
        """Return the lock that is held during a round."""
        return self._working

    # Called by the worker's thread ----------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return not self.closed and not self.fault and (bool(self.waiting) or self.asked_all)

    @property
    def weighs(self) -> bool:
        """Return whether the scheduler allocates the server's GPUs by the gains of rounds."""
        return self.cell.runner.measures_gain

    @property
    def scheduling(self) -> str:
        """Return the scheduling member and its parameters as text."""
        return repr(self.cell.runner.cell.system.scheduling)

    @property
    def is_busy(self) -> bool:
        """Return whether a round is waiting or running."""
        return self.has_work or self._working.locked()

    def work(self) -> None:
        """Run one training round on all waiting uploads, or produce a result with all weights."""
        with self._working:
            if self.closed:  # since it was chosen; its folder may be deleted already
                return
            with self._lock:
                until, resend, self.asked_all = self.received, self.asked_all, False
                if not resend:
                    self._taken = until
                    self.waiting.clear()
            request = RoundRequest(self.folder, self.asked, until, self.now_s(), self.progress.number, resend)
            try:
                self._take(self.worker.work(request))
                if resend:
                    (self.folder / RESYNC).unlink(missing_ok=True)
            except Exception as error:  # the worker's process was lost too often: other sessions must continue
                self.fault = f"{type(error).__name__}: {error}"
        self.news.ring()

    def _take(self, reply: RoundReply) -> None:
        """Update this copy of the network, then make the results available to the device."""
        if reply.fault:
            self.fault = reply.fault
            return
        with self._using:
            try:
                self._update_network(reply)
            finally:
                self.generation = next(GENERATIONS)
        self.shown, self.app.learner.last_gain = reply.shown or self.shown, reply.gained
        progress = self.progress
        progress.rounds.extend(reply.rounds)
        progress.used, progress.down_bytes = reply.used, reply.down_bytes
        progress.number = reply.number

    def _update_network(self, reply: RoundReply) -> None:
        """Switch to the network that the device runs, and apply the updates that the device receives."""
        node = self.app.node("application")
        if not self.is_loaded:
            self.app.choice.runs = reply.runs
            return  # it is read with these updates
        if reply.runs != self.app.choice.runs:
            self._session.call(node, "switch", reply.runs)
            self.app.choice.runs = reply.runs
        for number in range(max(self.progress.number, self._loaded) + 1, reply.number + 1):
            (result,) = decode_results((self.folder / RESULTS / f"{number:08d}").read_bytes(), self.app.facts.fps)
            if result.kind == "update":
                self._session.call(node, "apply", result.payload, float("-inf"))

    # State ----------------------------------------------------------------------------------------------------------

    @property
    def _version(self) -> int:
        node = self._session.nodes.get(self.app.node("application"))
        return self._unloaded_version if node is None else int(node.version)

    def _check_here(self) -> None:
        if self.moved:
            raise SessionMoved("the session moves to another replica")

    def _check(self, message: SampleMessage) -> None:
        """Raise WireError for an upload that this session cannot have sent, before it is decoded."""
        sampling, streaming = message.sampling, self.cell.runner.streaming
        if self._decoded_bytes(message) > MAX_DECODED_BYTES:
            raise WireError(f"{len(sampling.times_s)} frames would decode to {self._decoded_bytes(message)} bytes")
        if not -1e-9 <= sampling.times_s[0] <= sampling.times_s[-1] <= self.app.facts.duration_s:
            raise WireError(f"frames outside the stream, which lasts {self.app.facts.duration_s:g} s")
        if streaming.learner_site == "device":
            raise WireError("the learner of this session is on its device")
        if message.runs is not None and message.runs >= len(self.app.networks.student.profile):
            raise WireError(f"network {message.runs} of a family of {len(self.app.networks.student.profile)} networks")
        codec = getattr(streaming, "codec", sampling.codec)
        if sampling.codec != codec:
            raise WireError(f"the codec is '{sampling.codec}'; this session uses '{codec}'")

    def _decoded_bytes(self, message: SampleMessage) -> int:
        height, width = self.app.size
        return 3 * height * width * message.sampling.scale**2 * len(message.sampling.times_s)

    def _load(self) -> SessionState | None:
        """Build the network, with the weights of the newest round on disk; return the state of this round."""
        state, node = read_state(self.folder, self._device), self.app.node("application")
        self.cell.runner.place_app(self.app)
        if state is not None:
            self._session.nodes[node], self.app.choice.runs = state.nodes[node], state.runs
            state.nodes, self._loaded = {}, state.number
        return state

    def _restore(self) -> None:
        """Load the state and the unused uploads of the previous process."""
        state = self._load()
        self.asked_all = (self.folder / RESYNC).exists()
        if state is not None:
            self.progress, self._up_bytes = state, state.up_bytes
            if state.rounds:
                self._clock = (state.rounds[-1].time_s, time.monotonic())
        for file in upload_files(self.folder):
            message = decode_samples(file.read_bytes(), self.app.facts.fps)
            self._clock = (message.sent_s, time.monotonic())
            if message.number > self.progress.used:
                self.waiting.append(message)
                self._up_bytes += len(message.payload)


def in_passes(predict: Callable[[Any], Reply], images: np.ndarray[Any, Any], each: int) -> tuple[int, Any]:
    """Predict at most so many images at a time; return the network's version and all predictions."""
    replies = [predict(images[start : start + each]) for start in range(0, len(images), each)]
    found = [reply.payload for reply in replies]
    return replies[0].facts.version, found[0] if len(found) == 1 else np.concatenate(found)


def read_session(folder: Path) -> Mapping[str, Any]:
    """Return the description of a session in its folder."""
    document: Mapping[str, Any] = json.loads((folder / SESSION).read_text(encoding="utf-8"))
    return document
