"""One session on the server: the lab's training rounds, driven by uploads as they arrive.

Everything that a client may lose is on disk before it is acknowledged: uploads until a round has used them, results
until the session ends, and the state of the nodes after every round. The pickle of the nodes never leaves the folder.
"""

from __future__ import annotations

import json
import logging
import pickle
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from driftlab.errors import RunError, WireError
from driftlab.platform.backend.base import Job, NodeId
from driftlab.platform.backend.inline import InlineJob, InlineSession
from driftlab.platform.core.files import write_atomically
from driftlab.platform.core.records import Received
from driftlab.platform.field.messages import ResultKind, ResultMessage, SampleMessage, decode_samples, dump_state
from driftlab.platform.field.opening import FieldCell, dump_weights, open_on_server
from driftlab.platform.field.request import SessionAsked
from driftlab.platform.field.rounds import drive
from driftlab.platform.loop.deliveries import Delivery, LabelDelivery, UpdateDelivery
from driftlab.platform.loop.messages import Upload
from driftlab.platform.loop.placing import place_app, place_learner, place_teachers
from driftlab.platform.loop.rounds import WeightRounds
from driftlab.platform.loop.rows import update_row

log = logging.getLogger(__name__)
SESSION, NODES, UPLOADS, RESULTS = "session.json", "nodes.pickle", "uploads", "results"
KEPT_RESULTS = 1000  # messages a device may be behind
KEPT_S = 60.0  # after its stream, a session makes room for another one
MOST_WAITING = 8  # uploads of one session
MOST_DECODED_BYTES = 256 * 2**20  # of one upload
TRUTH = NodeId("device", "truth")  # plays the workload for an oracle


class Busy(RunError):
    """The session has as many uploads waiting as it may have."""


@dataclass(frozen=True)
class RoundFacts:
    """A training round, for the device's tables and for the page."""

    number: int
    time_s: float
    row: Mapping[str, Any]
    score: float | None  # of the network before the round, on the teacher's labels of the newest sample


@dataclass
class SessionState:
    """What survives the server's process."""

    nodes: dict[NodeId, Any] = field(default_factory=dict)
    server_state: Any = None
    has_learner: bool = False
    trains: int | None = None
    runs: int | None = None
    used: int = 0  # number of the newest upload that a round has used
    number: int = 0  # of the newest result
    rounds: list[RoundFacts] = field(default_factory=list)
    up_bytes: int = 0
    down_bytes: int = 0


@dataclass(frozen=True, eq=False)
class NewestSample:
    """The newest sample, for the page."""

    time_s: float
    frame: Any
    answer: Any
    truth: Any


class HostedSession:
    """A session; `upload` and `results` may be called from any thread, `work` from one at a time."""

    def __init__(self, folder: Path, asked: SessionAsked) -> None:
        self.folder, self.asked = folder, asked
        self._session = InlineSession()
        self.cell: FieldCell = open_on_server(asked, self._session)
        self.app = self.cell.app
        self.weights = dump_weights(self._payload(self.app.context.student.weights))
        self.progress = SessionState(server_state=self.app.server_state)
        self.shown: NewestSample | None = None
        self.waiting: deque[SampleMessage] = deque()
        self.ended, self.fault, self.asked_all = False, "", False
        self._lock = threading.Lock()
        self._clock = (0.0, time.monotonic())  # the device's time, and when it was told
        for name in (UPLOADS, RESULTS):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self._place()
        self._restore()

    # Called by routes -----------------------------------------------------------------------------------------------

    def upload(self, body: bytes) -> int:
        """Keep an upload; return its number. One that was acknowledged before is acknowledged again."""
        message = decode_samples(body, self.app.facts.fps)
        self._check(message)
        with self._lock:
            if message.number <= self.received:
                return message.number
            if message.number != self.received + 1:
                raise WireError(f"upload {message.number} does not follow upload {self.received}")
            if len(self.waiting) >= MOST_WAITING:
                raise Busy(f"{MOST_WAITING} uploads wait already")
            write_atomically(self.folder / UPLOADS / f"{message.number:08d}", body)
            self._clock = (message.sent_s, time.monotonic())
            self.progress.up_bytes += len(message.payload)
            self.waiting.append(message)
        return message.number

    @property
    def received(self) -> int:
        """Return the number of the newest upload."""
        return self.waiting[-1].number if self.waiting else max(self.progress.used, self._taken)

    @property
    def since_upload_s(self) -> float:
        """Return the time since the newest upload."""
        return time.monotonic() - self._clock[1]

    def results(self, after: int) -> bytes | None:
        """Return the results after a number, none if there are none yet; None if some of them were dropped."""
        newest = self.progress.number
        if after < newest - KEPT_RESULTS or after > newest:
            return None
        files = (self.folder / RESULTS / f"{number:08d}" for number in range(after + 1, newest + 1))
        return b"".join(file.read_bytes() for file in files)

    def answer(self, images: np.ndarray[Any, Any]) -> tuple[int, Any]:
        """Predict images with one whole version; return its number and the answers."""
        with self._using:
            job = self._session.call(self.app.node("application"), "answer", images)
            return job.reply.facts.version, job.reply.payload

    def pack(self) -> bytes:
        """Return the adaptation's summary of the source as safetensors; none for one that needs none."""
        job = self.app.context.packs.get(repr(self.cell.loop.parts.cell.system.adaptation))
        return dump_weights({} if job is None else self._payload(job))

    def status(self) -> dict[str, Any]:
        """Say how the session does."""
        progress, last = self.progress, self.progress.rounds[-1] if self.progress.rounds else None
        plan = {"rate_fps": last.row.get("rate_fps"), "interval_s": last.row.get("interval_s")} if last else {}
        workload = self.asked.workload
        return {
            "system": self.cell.loop.parts.cell.system.name,
            "workload": workload.name,
            "network": self.app.context.student.name,
            "task": self.app.context.task.name,
            "size": [workload.height, workload.width],
            "fps": workload.fps,
            "time_s": round(self.now_s(), 3),
            "uploads": self.received,
            "waiting": len(self.waiting),
            "results": progress.number,
            "version": self._version,
            "up_bytes": progress.up_bytes,
            "down_bytes": progress.down_bytes,
            "plan": plan,
            "score": last.score if last else None,
            "ended": self.ended,
            "fault": self.fault,
        }

    def history(self) -> list[dict[str, Any]]:
        """List the training rounds."""
        return [vars(one) for one in self.progress.rounds]

    @property
    def over(self) -> bool:
        """Tell whether its stream has ended a while ago, and every upload was used."""
        return self.now_s() > self.app.facts.duration_s + KEPT_S and not self.has_work

    def now_s(self) -> float:
        """Return the device's time, as far as its uploads tell it."""
        told_s, at = self._clock
        return told_s + (time.monotonic() - at)

    def idle(self) -> threading.Lock:
        """Return the lock that a round holds."""
        return self._using

    # Called by the driver -------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return not self.ended and not self.fault and (bool(self.waiting) or self.asked_all)

    def work(self) -> None:
        """Run one training round on every upload that waits, or send every weight."""
        try:
            with self._using:
                if self.asked_all:
                    self._resend()
                if self.waiting:
                    self._round()
                self._keep()
        except Exception as error:  # the session has failed; the others go on
            log.warning("session in %s failed", self.folder, exc_info=True)
            self.fault = f"{type(error).__name__}: {error}"

    def _round(self) -> None:
        with self._lock:
            messages = list(self.waiting)
            self.waiting.clear()
            self._taken = messages[-1].number
        if not self.app.has_learner and isinstance(self._rounds, WeightRounds):
            place_learner(self.cell.loop.parts, self.app)
        self._follow(messages[-1].runs)
        uploads = [upload for message in messages if (upload := self._received(message)) is not None]
        score = self._look(messages[-1], uploads[-1]) if uploads else None
        if uploads:
            steps = self._rounds.round(self.app, uploads, self.cell.loop.parts.context.server, self.now_s())
            for delivery in drive(steps, self._session, self.now_s):
                self._deliver(delivery, score)
        self.progress.used = messages[-1].number

    def _follow(self, runs: int | None) -> None:
        """Run the network that the device runs; its learner follows with the next phase."""
        if runs is not None and runs != self.app.runs:
            self._session.call(self.app.node("application"), "switch", runs)
            self.app.runs = runs

    def _received(self, message: SampleMessage) -> Upload | None:
        """Decode an upload on the node that the round reads it from; None if its bytes are not what they claim."""
        session, sampling = self._session, message.sampling
        frames = session.call(self._rounds.receiver(self.app), "receive", message.payload, sampling, self.app.size)
        received: Received = frames.reply.facts
        if received.refused:
            log.warning("upload %s in %s: %s", message.number, self.folder, received.refused)
            return None
        oracle = self.cell.loop.parts.cell.system.uses_teacher and self.app.context.teacher is None
        truth = session.call(TRUTH, "reveal", sampling.times_s) if oracle else frames
        stamp_s = self.now_s() if sampling.stamp == "receipt" else None
        return Upload(message.facts, sampling, frames, truth, stamp_s)

    def _look(self, message: SampleMessage, upload: Upload) -> float | None:
        """Score the network on the newest sample, and keep both for the page."""
        frame = self._payload(upload.frames).images[-1:]
        answers = self._session.call(self.app.node("application"), "answer", frame).reply.payload
        labels, score = None, None
        if self.cell.loop.parts.cell.system.uses_teacher:
            labels = self._session.call(self.app.teacher, "label", upload.truth).reply.payload[-1:]
            task = self.app.context.task
            score = float(np.nan_to_num(task.score(task.counts(answers, labels, self.app.context.classes).sum(axis=0))))
        truth = None if labels is None else labels[0]
        self.shown = NewestSample(message.sampling.times_s[-1], frame[0], answers[0], truth)
        return score

    def _resend(self) -> None:
        self.asked_all = False
        if self.app.has_learner and isinstance(self._rounds, WeightRounds):
            self._deliver(self._rounds.resent(self.app, self._rounds.resend(self.app)), None)

    def _deliver(self, delivery: Delivery, score: float | None) -> None:
        """Keep a result for the device, and apply an update to the server's own copy."""
        plan, payload, captured_s, kind = dump_state(self.app.server_state), b"", 0.0, delivery.kind
        if isinstance(delivery, UpdateDelivery):
            payload = self._payload(delivery.packing)
            self._session.call(self.app.node("application"), "apply", payload, float("-inf"))
        elif isinstance(delivery, LabelDelivery):
            payload, captured_s = self._payload(delivery.packed), delivery.upload.sent.newest_s
        number = self.progress.number + 1
        result = ResultMessage(number, _kind(kind), plan, payload, captured_s)
        write_atomically(self.folder / RESULTS / f"{number:08d}", result.encode(self.app.facts.fps))
        (self.folder / RESULTS / f"{number - KEPT_RESULTS:08d}").unlink(missing_ok=True)
        row = {} if isinstance(delivery, LabelDelivery) else self._row(delivery)
        self.progress.rounds.append(RoundFacts(number, self.now_s(), row, score))
        self.progress.down_bytes += len(payload) or len(plan)
        self.progress.number = number

    def _row(self, delivery: Any) -> Mapping[str, Any]:
        row = update_row(delivery.done, delivery.done.idle, "server")
        return {name: value.item() if isinstance(value, np.generic) else value for name, value in row.items()}

    # State ----------------------------------------------------------------------------------------------------------

    @property
    def _rounds(self) -> Any:
        return self.cell.loop.teaching.rounds

    @property
    def _version(self) -> int:
        return int(self._session.nodes[self.app.node("application")].version)

    def _payload(self, job: Job) -> Any:
        assert isinstance(job, InlineJob)
        return job.reply.payload

    def _place(self) -> None:
        self._using, self._taken = threading.Lock(), 0
        place_teachers(self.cell.loop.parts)
        place_app(self.cell.loop.parts, self.app)
        self._session.place(TRUTH, self.app.wish.stream)

    def _check(self, message: SampleMessage) -> None:
        """Refuse an upload that is not of this session, before it is decoded."""
        height, width = self.app.size
        sampling, asked = message.sampling, self.cell.loop.parts.streaming
        pixels = height * width * sampling.scale**2 * len(sampling.times_s)
        if 3 * pixels > MOST_DECODED_BYTES:
            raise WireError(f"{len(sampling.times_s)} frames would decode to {3 * pixels} bytes")
        if not -1e-9 <= sampling.times_s[0] <= sampling.times_s[-1] <= self.app.facts.duration_s:
            raise WireError("the frames lie outside the stream")
        if asked.place == "device":
            raise WireError("the learner of this session stands on its device")
        if message.runs is not None and message.runs >= len(self.app.context.student.profile):
            raise WireError(f"the family has {len(self.app.context.student.profile)} networks, none is {message.runs}")
        if sampling.codec != getattr(asked, "codec", sampling.codec):
            raise WireError(f"the codec is '{sampling.codec}', and this session's '{asked.codec}'")  # type: ignore[attr-defined]

    def _keep(self) -> None:
        """Write the state of the nodes, then drop the uploads that it contains."""
        progress = self.progress
        progress.nodes, progress.server_state = dict(self._session.nodes), self.app.server_state
        progress.has_learner, progress.trains, progress.runs = self.app.has_learner, self.app.trains, self.app.runs
        write_atomically(self.folder / NODES, pickle.dumps(progress))
        for file in self._upload_files():
            if int(file.name) <= progress.used:
                file.unlink()

    def _restore(self) -> None:
        """Go on where a process before this one stopped."""
        if (self.folder / NODES).exists():
            self.progress = pickle.loads((self.folder / NODES).read_bytes())
            self._session.nodes.update(self.progress.nodes)
            self.app.server_state, self.app.has_learner = self.progress.server_state, self.progress.has_learner
            self.app.trains, self.app.runs = self.progress.trains, self.progress.runs
        for file in self._upload_files():
            message = decode_samples(file.read_bytes(), self.app.facts.fps)
            self._clock = (message.sent_s, time.monotonic())
            if message.number > self.progress.used:
                self.waiting.append(message)

    def _upload_files(self) -> Iterator[Path]:
        files = sorted((self.folder / UPLOADS).iterdir())
        return (file for file in files if file.name.isdigit())


def _kind(name: str) -> ResultKind:
    return name  # type: ignore[return-value]


def read_session(folder: Path) -> Mapping[str, Any]:
    """Read what a session's folder says of it."""
    found: Mapping[str, Any] = json.loads((folder / SESSION).read_text(encoding="utf-8"))
    return found
