"""Training rounds in real time: the simulator's rounds on the uploads in a session's folder.

The request for a round may be repeated: its inputs are in the session's folder, and its results are written there
before it returns. If the process is killed during a round, the next process runs the same round again.
"""

from __future__ import annotations

import fcntl
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from driftlab.determinism import in_plain_words, make_deterministic
from driftlab.errors import RunError, WireError
from driftlab.platform.core.files import append_lines, write_atomically
from driftlab.platform.core.records import Received
from driftlab.platform.field.media import MediaDecoder
from driftlab.platform.field.messages import ResultKind, ResultMessage, SampleMessage, decode_samples, dump_state
from driftlab.platform.field.opening import FieldCell, open_on_server
from driftlab.platform.field.request import SessionRequest
from driftlab.platform.field.state_file import dump_objects, load_objects
from driftlab.platform.sim.host import keep_freed_memory, use_one_thread
from driftlab.platform.sim.inline import InlineJob, InlineSession
from driftlab.platform.sim.messages import Delivery, LabelDelivery, UpdateDelivery, Upload
from driftlab.platform.sim.rounds import Await, RoundGain, Step, Steps
from driftlab.platform.sim.rows import update_row
from driftlab.platform.sim.session import Job, NodeId, Session

if TYPE_CHECKING:
    from driftlab.platform.field.joining import Meeting

log = logging.getLogger(__name__)
STATE, ROUNDS, UPLOADS, RESULTS, LOCK = "state.safetensors", "rounds.jsonl", "uploads", "results", "rounds.lock"
DEVICE = "torch_device"  # file with the name of the GPU that the state is of; a state without it is of the CPU
OLD_STATE = "nodes.pickle"  # of versions that stored pickles, which are never read
KEPT_RESULTS = 1000  # newest messages on disk; a device further behind must request all weights
LOCK_TIMEOUT_S, LOCK_INTERVAL_S = 30.0, 0.05  # for a killed process to release the session's lock
JOB_INTERVAL_S = 0.01  # between checks whether a call has returned
AT_ONCE = 16  # rounds of a worker on a GPU, whose learners may train as one batch
NETWORKS = 64  # of sessions that a process keeps in memory
TRUTH = NodeId("device", "truth")  # renders the workload for an oracle teacher


@dataclass(frozen=True)
class RoundFacts:
    """A training round, for the tables of the device and the live page."""

    number: int
    time_s: float
    row: Mapping[str, Any]
    score: float | None  # before the round, on the teacher's labels of the newest sample


@dataclass(frozen=True, eq=False)
class NewestSample:
    """The newest sample with its prediction and labels, for the live page."""

    time_s: float
    frame: Any
    prediction: Any
    truth: Any


@dataclass
class SessionState:
    """The state of a session that is stored between rounds."""

    nodes: dict[NodeId, Any] = field(default_factory=dict)
    server_state: Any = None
    has_learner: bool = False
    trains: int | None = None
    runs: int | None = None
    used: int = 0  # number of the newest upload that a round has used
    number: int = 0  # number of the newest result
    rounds: list[RoundFacts] = field(default_factory=list)
    up_bytes: int = 0
    down_bytes: int = 0


@dataclass(frozen=True)
class RoundRequest:
    """A request to a worker: a round on all uploads up to a number, or a message with all weights."""

    folder: Path
    asked: SessionRequest
    until: int  # number of the newest upload to use
    now_s: float  # on the device's clock
    known: int  # number of the newest result that the requesting process has
    resend: bool = False


@dataclass(frozen=True, eq=False)
class RoundReply:
    """The state of a session after a round, and the rounds after `RoundRequest.known`."""

    used: int = 0
    number: int = 0
    runs: int | None = None
    rounds: Sequence[RoundFacts] = ()
    down_bytes: int = 0
    shown: NewestSample | None = None
    gained: RoundGain | None = None  # for the server's scheduler
    fault: str = ""


class Worker(Protocol):
    """Runs training rounds, in this process or in another one."""

    @property
    def at_once(self) -> int:
        """Return the number of sessions whose rounds may run at the same time, each in another thread."""

    def build(self, asked: SessionRequest) -> None:
        """Train the networks of a session that are not cached on this computer."""

    def work(self, request: RoundRequest) -> RoundReply:
        """Run a round and return when it is finished."""

    def drop(self, folder: Path) -> None:
        """Release the memory and the lock of a session."""


def rounds_at_once(torch_device: str) -> int:
    """Return the rounds that a worker runs at the same time; on a CPU one, since batches are slower there."""
    return 1 if torch_device == "cpu" else AT_ONCE


class RoundsWorker:
    """Runs rounds in this process; a session is opened from its folder at its first round.

    Above a number of sessions those are closed whose rounds are the longest ago. Their state is on disk.
    """

    def __init__(self, torch_device: str = "cpu", at_once: int | None = None, networks: int = NETWORKS) -> None:
        use_one_thread()
        keep_freed_memory()
        make_deterministic(torch_device)
        self._device, self.at_once = torch_device, at_once or rounds_at_once(torch_device)
        self._meeting = None if self.at_once == 1 else _new_meeting()
        self._sessions: OrderedDict[Path, SessionRounds] = OrderedDict()
        self._networks, self._working = networks, set[Path]()
        self._decoder = MediaDecoder()

    def build(self, asked: SessionRequest) -> None:
        open_on_server(asked, InlineSession(), self._device)

    def work(self, request: RoundRequest) -> RoundReply:
        with self._meeting.taking_part() if self._meeting else nullcontext():
            return self._work(request)

    def _work(self, request: RoundRequest) -> RoundReply:
        self._working.add(request.folder)
        try:
            session = self._sessions.get(request.folder)
            if session is None:
                nodes = self._meeting.open() if self._meeting else InlineSession()
                session = SessionRounds(request.folder, request.asked, self._decoder, self._device, nodes)
                self._sessions[request.folder] = session
                self._close_oldest()
            self._sessions.move_to_end(request.folder)
            return session.work(request)
        except Exception as error:  # reported in the reply: other sessions must continue
            log.warning("session in %s failed", request.folder, exc_info=True)
            self.drop(request.folder)
            return RoundReply(fault=in_plain_words(f"{type(error).__name__}: {error}"))
        finally:
            self._working.discard(request.folder)

    def _close_oldest(self) -> None:
        for folder in list(self._sessions)[: -self._networks]:
            if folder not in self._working:
                self.drop(folder)

    def drop(self, folder: Path) -> None:
        session = self._sessions.pop(folder, None)
        if session is not None:
            session.close()

    def close(self) -> None:
        for folder in list(self._sessions):
            self.drop(folder)
        self._decoder.close()


def _new_meeting() -> Meeting:
    from driftlab.platform.field.joining import Meeting  # imports torch

    return Meeting()


def drive(
    steps: Steps, session: Session, now: Callable[[], float], done: Callable[[Step], None] = lambda step: None
) -> Sequence[Delivery]:
    """Run a round to its end, calling `done` after each step, and return its deliveries."""
    try:
        step = next(steps)
        while True:
            if isinstance(step, Await) and not session.ready(step.job):
                time.sleep(JOB_INTERVAL_S)
                continue
            if isinstance(step, Step):
                done(step)
            step = steps.send(now())
    except StopIteration as end:
        deliveries: Sequence[Delivery] = end.value
        return deliveries


class SessionRounds:
    """The nodes of one session and their state on disk."""

    def __init__(
        self,
        folder: Path,
        asked: SessionRequest,
        decoder: MediaDecoder,
        torch_device: str,
        nodes: InlineSession,
    ) -> None:
        self._decoder, self._device = decoder, torch_device
        self.folder, self._lock = folder, take_lock(folder)
        self._session = nodes
        self.cell: FieldCell = open_on_server(asked, self._session, torch_device)
        self.app = self.cell.app
        self.progress = SessionState(server_state=self.app.learner.server_state)
        self._stored_rounds = 0
        self._shown: NewestSample | None = None
        self._clock = (0.0, time.monotonic())  # the device's time, and this computer's when it was received
        self.cell.runner.place_teachers()
        self.cell.runner.place_app(self.app)
        self._session.place(TRUTH, self.app.spec.stream)
        self._restore()

    def close(self) -> None:
        """Release the lock, so that another process can open this session."""
        self._lock.close()

    def work(self, request: RoundRequest) -> RoundReply:
        """Run a round on the unused uploads, or write a message with all weights; then store the state."""
        self._clock = (request.now_s, time.monotonic())
        if request.resend:
            self._resend()
        elif uploads := self._unused_uploads(request.until):
            self._run_round(uploads)
        self._store_state()
        progress, app = self.progress, self.app
        rounds = [one for one in progress.rounds if one.number > request.known]
        runs, gained = app.choice.runs, app.learner.last_gain
        return RoundReply(progress.used, progress.number, runs, rounds, progress.down_bytes, self._shown, gained)

    # A round --------------------------------------------------------------------------------------------------------

    def _unused_uploads(self, until: int) -> list[SampleMessage]:
        files = (file for file in upload_files(self.folder) if self.progress.used < int(file.name) <= until)
        return [decode_samples(file.read_bytes(), self.app.facts.fps) for file in files]

    def _run_round(self, messages: Sequence[SampleMessage]) -> None:
        learner = self.app.learner
        if not learner.placed and self._trains:
            self.cell.runner.place_learner(self.app)
        self._switch_network(messages[-1].runs)
        uploads = [upload for message in messages if (upload := self._decode(message)) is not None]
        score = self._score(messages[-1], uploads[-1]) if uploads else None
        if uploads:
            for delivery in drive(learner.round(uploads, self._now_s()).steps(), self._session, self._now_s):
                self._deliver(delivery, score)
        self.progress.used = messages[-1].number
        self.progress.up_bytes += sum(len(message.payload) for message in messages)

    def _switch_network(self, runs: int | None) -> None:
        """Run the network that the device runs; the learner switches to it in the next phase."""
        if runs is not None and runs != self.app.choice.runs:
            self._session.call(self.app.node("application"), "switch", runs)
            self.app.choice.runs = runs

    def _decode(self, message: SampleMessage) -> Upload | None:
        """Decode an upload for the node that the round reads it from; None if its payload is invalid."""
        session, sampling = self._session, message.sampling
        reply = self._decoder.receive(message.payload, sampling, self.app.size)
        frames = InlineJob(self.app.learner.receiver, "receive", reply)
        received: Received = frames.reply.facts
        if received.refused:
            log.warning("upload %s in %s: %s", message.number, self.folder, received.refused)
            return None
        truth = session.call(TRUTH, "sample_with_truth", sampling.times_s) if self.app.learner.reads_truth else frames
        stamp_s = self._now_s() if sampling.stamp == "receipt" else None
        return Upload(message.facts, sampling, frames, truth, stamp_s)

    def _score(self, message: SampleMessage, upload: Upload) -> float | None:
        """Return the score on the newest sample, None without a teacher; store the sample for the page."""
        frame = payload_of(upload.frames).images[-1:]
        predictions = self._session.call(self.app.node("application"), "predict_images", frame).reply.payload
        labels, score = None, None
        if self.cell.runner.cell.system.uses_teacher:
            labels = self._session.call(self.app.teacher, "label", upload.truth).reply.payload[-1:]
            task = self.app.networks.task
            counts = task.counts(predictions, labels, self.app.networks.classes).sum(axis=0)
            score = float(np.nan_to_num(task.score(counts)))
        truth = None if labels is None else labels[0]
        self._shown = NewestSample(message.sampling.times_s[-1], frame[0], predictions[0], truth)
        return score

    def _resend(self) -> None:
        learner = self.app.learner
        if learner.placed and self._trains:
            self._deliver(learner.delivery_of_all(learner.pack_all()), None)

    def _deliver(self, delivery: Delivery, score: float | None) -> None:
        """Store a result for the device, and apply an update to the server's copy of its network."""
        plan, payload, captured_s, kind = dump_state(self.app.learner.server_state), b"", 0.0, delivery.kind
        if isinstance(delivery, UpdateDelivery):
            payload = payload_of(delivery.packing)
            self._session.call(self.app.node("application"), "apply", payload, float("-inf"))
        elif isinstance(delivery, LabelDelivery):
            payload, captured_s = payload_of(delivery.packed), delivery.upload.sent.newest_s
        number = self.progress.number + 1
        result = ResultMessage(number, _kind(kind), plan, payload, captured_s)
        write_atomically(self.folder / RESULTS / f"{number:08d}", result.encode(self.app.facts.fps))
        (self.folder / RESULTS / f"{number - KEPT_RESULTS:08d}").unlink(missing_ok=True)
        row = {} if isinstance(delivery, LabelDelivery) else _row(delivery)
        self.progress.rounds.append(RoundFacts(number, self._now_s(), row, score))
        self.progress.down_bytes += len(payload) or len(plan)
        self.progress.number = number

    @property
    def _trains(self) -> bool:
        """Return whether rounds train a network here; else they only label."""
        return self.cell.runner.streaming.label_tracking is None

    def _now_s(self) -> float:
        device_s, received_s = self._clock
        return device_s + (time.monotonic() - received_s)

    # State ----------------------------------------------------------------------------------------------------------

    def _store_state(self) -> None:
        """Write rounds and state, then delete the uploads in them: a crash in between only repeats a round."""
        progress, learner, choice = self.progress, self.app.learner, self.app.choice
        progress.nodes, progress.server_state = dict(self._session.nodes), learner.server_state
        progress.has_learner, progress.trains, progress.runs = learner.placed, choice.trains, choice.runs
        append_lines(self.folder / ROUNDS, (json.dumps(vars(one)) for one in progress.rounds[self._stored_rounds :]))
        self._stored_rounds = len(progress.rounds)
        if self._device != "cpu":
            write_atomically(self.folder / DEVICE, self._device)
        write_atomically(self.folder / STATE, dump_objects(replace(progress, rounds=[])))
        for file in upload_files(self.folder):
            if int(file.name) <= progress.used:
                file.unlink()

    def _restore(self) -> None:
        """Load the state that the previous process stored."""
        state = read_state(self.folder, self._device, repair=True)
        if state is not None:
            self.progress, self._stored_rounds = state, len(state.rounds)
            self._session.nodes.update(state.nodes)
            self.app.learner.server_state, self.app.learner.placed = state.server_state, state.has_learner
            self.app.choice.trains, self.app.choice.runs = state.trains, state.runs


def read_state(folder: Path, torch_device: str = "cpu", *, repair: bool = False) -> SessionState | None:
    """Return the state that the last round stored; None before the first one.

    Only the process that runs the rounds may repair the list of rounds.
    """
    file, device = folder / STATE, folder / DEVICE
    if (folder / OLD_STATE).exists():
        raise RunError(f"'{folder / OLD_STATE}' is of another version of driftlab. Start a new session.")
    if not file.exists():
        return None
    stored = device.read_text(encoding="utf-8") if device.exists() else "cpu"
    if stored != torch_device:
        raise RunError(
            f"'{file}' is of the torch device {stored}, and this server uses {torch_device}. Start it with "
            f"--torch-device {stored}, or start a new session."
        )
    try:
        state = load_objects(file.read_bytes())
        if not isinstance(state, SessionState):
            raise WireError("it has no session")
    except WireError as error:
        raise RunError(
            f"'{file}' is damaged or of another version of driftlab: {error}. Start a new session."
        ) from error
    return replace(state, rounds=_read_rounds(folder / ROUNDS, state.number, repair=repair))


def _read_rounds(file: Path, newest: int, *, repair: bool) -> list[RoundFacts]:
    """Return the rounds up to a number; a repair removes the lines of later ones, which have no state."""
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []
    whole = [json.loads(line) for line in lines if line.endswith("\n")]
    kept = [one for one in whole if one["number"] <= newest]
    if repair and len(kept) < len(lines):
        write_atomically(file, "".join(json.dumps(one) + "\n" for one in kept))
    return [RoundFacts(**one) for one in kept]


def upload_files(folder: Path) -> Iterator[Path]:
    """Return the stored uploads in order of their numbers."""
    return (file for file in sorted((folder / UPLOADS).iterdir()) if file.name.isdigit())


def payload_of(job: Job) -> Any:
    """Return the payload of a call to a node in this process."""
    assert isinstance(job, InlineJob)
    return job.reply.payload


def _row(delivery: Any) -> Mapping[str, Any]:
    row = update_row(delivery.training_round, delivery.training_round.idle)
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in row.items()}


def _kind(name: str) -> ResultKind:
    return name  # type: ignore[return-value]


def take_lock(folder: Path) -> Any:
    """Return the locked file of a session's rounds; wait for a killed process that still holds the lock."""
    file, until_s = (folder / LOCK).open("wb"), time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except BlockingIOError as error:
            if time.monotonic() > until_s:
                file.close()
                raise RunError(f"another process has locked {folder}; stop it, or use another folder") from error
            time.sleep(LOCK_INTERVAL_S)
