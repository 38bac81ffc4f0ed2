"""Check a member by short cells: as it is, again, with another future, and with pickled states."""

from __future__ import annotations

import functools
import inspect
import pickle
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from driftlab.errors import RequestError
from driftlab.platform.core import plugins
from driftlab.platform.core.records import LEARNING_FAILED, NO_END, PREDICTION_FAILED, ModelCost, Passes
from driftlab.platform.core.registry import (
    BASES,
    FAMILIES,
    METHODS,
    Member,
    import_class,
    member_class,
    parameter_faults,
    parameters,
)
from driftlab.platform.lab.poison import ENDS, SENSE_HZ, past_of, poisoned
from driftlab.platform.lab.seal import run
from driftlab.platform.results.tables.diff import differences, table_differences
from driftlab.platform.results.tables.read import Run, open_run
from driftlab.platform.sim.inline import InlineBackend, InlineJob, InlineSession
from driftlab.platform.sim.session import NodeId
from driftlab.platform.world.cost import macs_of

POISON_S, LENGTH_S, FPS, BATCH, SIZE = 7.7, 12.0, 6.0, 8, 32
FACTOR, FLOOR_S = 2.0, 0.002  # of the processor time that the charged work predicts; a call may always take the floor
STEPS, PASSES = 9, 3  # the median of so many steps is the price of work; a step has three passes of its frames
STATES = ("state", "window")  # arguments of verbs that hold the state of a member
FAILURES = (LEARNING_FAILED, NO_END, PREDICTION_FAILED)
BOARD = {
    "name": "board",
    "macs_per_s": 2.4e9,
    "bytes_per_s": 4.8e9,
    "overhead_s": 15e-6,
    "memory_bytes": 100_000_000,
    "idle_w": 0.4,
    "busy_w": 2.5,
}
QUICK: Mapping[str, Mapping[str, Any]] = {  # of the other members in its system
    "on_device": {"period_s": 2, "rate_fps": 4, "horizon_s": 4},
    "distill": {"iterations": 2, "batch": 4},
    "nested": {"accuracy_loss": 1.0, "keep_ratios": [1.0, 0.5], "prune_epochs": 1, "grow_epochs": 1},
    "independent": {"keep_ratios": [1.0, 0.5], "epochs": 1},
    "surrogate": {"keep_ratios": [0.5], "epochs": 1},
}
STUDENTS = {"classification": "tiny_classifier", "segmentation": "tiny", "detection": "tiny_detector"}  # by task
STAGED = "tiny_staged"  # for members that scale networks: some of them need stages


@dataclass(frozen=True)
class CheckResult:
    """The result of one check: empty if the member passes, else the fault and the next step."""

    check: str
    fault: str


def world_of(fps: float, student: str) -> dict[str, Any]:
    """Return an experiment of seconds: two applications on a board with load, in domains that change."""
    signs = student in (STUDENTS["classification"], STAGED)
    workload = {
        "name": "domains:signs/depot" if signs else "domains:streets/driving_la",
        "alias": "checked",
        "duration_s": LENGTH_S,
        "fps": fps,
        "height": SIZE,
        "width": SIZE,
        "domain_labels": "oracle",
        "params": {"domain_s": 3, "severities": [5]},
        "apps": [{"name": "left", "latency_goal_s": 0.02}, {"name": "right", "latency_goal_s": 0.02}],
    }
    return {
        "name": "contract",
        "bounds": False,
        "snapshots": 0,
        "window_s": 2,
        "student": {"network": student, "pretrain_steps": 10, "pretrain_batch": 16},
        "server": {"label_s": 1e-7, "step_s": 0.01},
        "fleets": [
            {"name": "user", "devices": [{"hardware": BOARD, "load": {"preset": "random", "sense_hz": SENSE_HZ}}]}
        ],
        "workloads": [workload],
    }


def check_member(name: str, params: Mapping[str, Any] | None = None) -> list[CheckResult]:
    """Run the checks of a member, FILE.py:Class or FAMILY/NAME; the first fault of a cell ends them.

    Without equal tables of equal cells, a comparison with another cell shows nothing.
    """
    try:
        checked = load(name, params or {})
    except RequestError as error:
        return [CheckResult("loads", str(error))]
    found = [CheckResult("loads", "")]
    with tempfile.TemporaryDirectory(prefix="driftlab-check-") as folder:
        cells = Cells(checked, Path(folder))
        for name_of, fault in cells.checks.items():
            found.append(CheckResult(name_of, fault()))
            if found[-1].fault and name_of in ("runs", "repeatable"):
                break
    return found


def load(name: str, params: Mapping[str, Any]) -> Member:
    """Return the member of a name; RequestError for faults of its class, signatures or parameters."""
    family, _, listed = name.partition("/")
    if plugins.is_outside(name):
        found, listed = plugins.find_class("member", name), name
        family = next((one for one, base in BASES.items() if issubclass(found, import_class(base))), "adaptation")
    elif not listed:
        raise RequestError(f"'{name}' names no class: give FILE.py:Class, or FAMILY/NAME such as adaptation/tent.")
    member = Member(family, listed, tuple(params.items()))
    cls = member_class(family, listed)
    if faults := parameter_faults(cls, {key: default for key, (_, default) in parameters(cls).items()}):
        raise RequestError(f"{member}: a default is invalid: {'; '.join(faults)}")
    made = member.make()
    if any(getattr(made, claim, False) for claim in ("free", "uses_true_load", "uses_true_gains")):
        raise RequestError(f"{member} is a bound: it uses frames or loads before their time; check another member")
    return member


def experiment_of(member: Member) -> dict[str, Any]:
    """Return the cell of seconds in which a member is checked."""
    cls = member_class(member.family, member.name)
    tasks = cls.tasks if member.family == "adaptation" else tuple(STUDENTS)[:1]
    others: dict[str, Any] = {}
    if member.name == next(iter(FAMILIES[member.family])):
        pass  # a null member
    elif (row := METHODS[member.family].get(member.name)) and row.others is not None:
        others = dict(row.others)
    elif member.family == "scheduling":
        others = {"streaming": "on_device", "adaptation": "distill"}
    elif member.family == "streaming" and cls.feeds_learner:
        others = {"adaptation": "distill"}
    elif member.family == "adaptation" and (cls.labels == "teacher" or not cls.learns_on_stream):
        others = {"streaming": "on_device"}
    slots: dict[str, dict[str, Any]]
    slots = {family: {"name": one} if isinstance(one, str) else dict(one) for family, one in others.items()}
    slots = {family: {**one, **QUICK.get(one["name"], {})} for family, one in slots.items()}
    if member.family == "scheduling" and "adaptation" in slots:
        slots["adaptation"] |= {"step_choices": [1, 2]}
    batch = {"stream_batch": BATCH} if "stream_batch" in parameters(cls) else {}  # for several batches in a window
    slots[member.family] = {"name": member.name, **batch, **dict(member.params)}
    student = STAGED if member.family == "scaling" else next(STUDENTS[task] for task in STUDENTS if task in tasks)
    return {
        **world_of(FPS, student),
        "systems": [{"name": "checked", **slots}],
    }


class Cells:
    """The cells of a member, each run once, and the checks that compare them."""

    def __init__(self, member: Member, folder: Path) -> None:
        self.member, self._folder = member, folder
        self.document = experiment_of(member)
        self.calls: list[PricedCall] = []

    @functools.cached_property
    def first(self) -> Run:
        """Return the cell of the member as it is."""
        with recorded(self.calls):
            return self._run("first")

    @property
    def checks(self) -> Mapping[str, Callable[[], str]]:
        """Return the checks that run cells, by name, in their order."""
        adapts, student = self.member.family == "adaptation", self.document["student"]["network"]
        return {
            "runs": self.run_fault,
            "repeatable": self.repeat_fault,
            "causal": self.future_fault,
            **({"cost": lambda: cost_fault(self.calls, student)} if adapts else {}),
            "resumes": self.resume_fault,
        }

    def run_fault(self) -> str:
        """Return the first failure of the member in its cell; or that it was never called to learn."""
        try:
            (row,) = self.first.table("runs").to_pylist()
        except RequestError as error:  # no system can have the member
            return str(error)
        if row["status"] != "done":
            return str(row["error"])
        rows = [(one["skipped"], one["end_s"]) for one in self.first.table("adaptations").to_pylist()]
        updates = self.first.table("updates").to_pylist()
        rows += [(one["reason"], one["arrive_s"]) for one in updates]
        for why, time_s in rows:
            if why and why.startswith(FAILURES):
                return f"{why}, at {time_s or 0:g} s of the stream; correct it, or return the reason as `skipped`"
        family, cls = self.member.family, member_class(self.member.family, self.member.name)
        learns = family == "adaptation" and self.member.name != "frozen"
        if not rows and (learns or (family == "streaming" and cls.feeds_learner)):
            return (
                f"it never learned within {LENGTH_S:g} s at {FPS:g} frames/s, so that nothing was checked; set a "
                "smaller batch or period, such as --set stream_batch=8 or --set period_s=2"
            )
        return ""

    def repeat_fault(self) -> str:
        """Return the first difference of a second, equal cell in the same process."""
        return _difference(
            self.first,
            self._run("again"),
            "an equal cell differs",
            "compute from the arguments only: no clock, no random numbers except batch.rng, and no state in a module "
            "or class",
        )

    def future_fault(self) -> str:
        """Return the first difference before the time from which frames, labels and load are others."""
        with poisoned(POISON_S):
            other = self._run("poisoned")
        for table in ENDS:
            pasts = (past_of(one, table, "checked", POISON_S) for one in (self.first, other))
            for line in table_differences(*pasts):
                return (
                    f"its past depends on frames, labels or loads after {POISON_S:g} s: table '{table}', {line}; use "
                    "the frames, labels and loads in the arguments only"
                )
        return ""

    def resume_fault(self) -> str:
        """Return the fault of a cell whose nodes, members and states are pickled and read before each call."""
        faults: list[str] = []
        with ExitStack() as stack:
            if self.member.family != "scaling":
                stack.enter_context(travelling(self.member, faults))
            run = self._run("resumed", lambda: TravellingBackend(faults))
        return (
            faults[0]
            if faults
            else _difference(
                self.first,
                run,
                "pickled and read again, it continues differently",
                "keep everything that it needs in the state that it returns",
            )
        )

    def _run(self, name: str, backend: Callable[[], Any] = InlineBackend) -> Run:
        return open_run(run(self.document, out=self._folder / name, open_backend=backend).directory)


def _difference(first: Run, second: Run, fault: str, step: str) -> str:
    line = next(iter(differences(first, second)), "").replace(" cell 'checked/checked/user/seed-0',", "")
    return f"{fault}: {line}; {step}" if line else ""


# Pickled states -------------------------------------------------------------------------------------------------------


def _travelled(value: Any, whose: str, faults: list[str]) -> Any:
    """Return a value as another process would receive it; the value itself, and a fault, if that fails."""
    try:
        return pickle.loads(pickle.dumps(value))
    except Exception as error:  # classes of users may fail in any way
        faults.append(
            f"{whose} cannot be pickled ({type(error).__name__}: {error}); keep arrays, numbers, text and dataclasses "
            "at the top level of a module"
        )
        return value


@dataclass(eq=False)
class TravellingSession(InlineSession):
    """A session whose nodes move to another process before each call, as after a lost worker."""

    faults: list[str] = field(default_factory=list)

    def call(self, node: NodeId, verb: str, *args: Any) -> InlineJob:
        self.nodes[node] = _travelled(self.nodes[node], f"the {node.kind} with its member", self.faults)
        return super().call(node, verb, *args)


class TravellingBackend(InlineBackend):
    """Opens sessions whose nodes move."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__()
        self._faults = faults

    def open(self, session: str) -> InlineSession:
        return TravellingSession(faults=self._faults) if session != "artefacts" else InlineSession()


@contextmanager
def travelling(member: Member, faults: list[str]) -> Iterator[None]:
    """Pickle and read a member and its state before each call; find states changed in place."""
    cls, inside = member_class(member.family, member.name), [False]

    def moved(verb: Callable[..., Any], place: int) -> Callable[..., Any]:
        @functools.wraps(verb)
        def call(self: Any, *args: Any, **named: Any) -> Any:
            if inside[0]:
                return verb(self, *args, **named)
            state = _travelled(args[place], "its state", faults)
            made = _travelled(self, "the member", faults)
            before, inside[0] = _bytes(state), True
            try:
                return verb(made, *args[:place], state, *args[place + 1 :], **named)
            finally:
                inside[0] = False
                if _bytes(state) != before:
                    faults.append(
                        f"{verb.__name__} changes its state in place; return a new state, since a failed call "
                        "continues with the one before it"
                    )

        return call

    with ExitStack() as stack:
        for name, verb in inspect.getmembers(import_class(BASES[member.family]), inspect.isfunction):
            names = list(inspect.signature(verb).parameters)[1:]
            for place in [names.index(one) for one in STATES if one in names]:
                stack.enter_context(patch.object(cls, name, moved(getattr(cls, name), place)))
        yield


def _bytes(value: Any) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception:  # reported where it moves
        return b""


# Cost -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PricedCall:
    """A call of a member: the work that is charged, and the processor time that it took."""

    verb: str
    batch: int  # frames of a usual pass
    cost: ModelCost  # of the network
    macs: float
    seconds: float
    audited: bool = False  # every operator was counted, which takes time: used only where there are no other calls


@contextmanager
def recorded(calls: list[PricedCall]) -> Iterator[None]:
    """Record the calls of members."""
    from driftlab.platform.sim.nodes.metering import Call, CallMeter, stated_macs

    charge = CallMeter.charge

    def charged(self: CallMeter, call: Call, passes: Passes, *, learned: bool = False) -> Passes:
        full = charge(self, call, passes, learned=learned)
        beyond = macs_of(call.cost, {name: batch * times for name, batch, times in full.beyond})
        macs = stated_macs(call.cost, full) + beyond + sum(one.macs for one in full.others)
        batch = round(median(full.forward or [call.frames])) or 1
        audited = call.operators is not None
        calls.append(PricedCall(call.verb, batch, call.cost, macs, call.host_seconds, audited))
        return full

    with patch.object(CallMeter, "charge", charged):
        yield


def step_s(student: str, batch: int) -> float:
    """Return the processor time of a training step of a network, as a median."""
    import torch

    from driftlab.platform.networks.architectures import build
    from driftlab.platform.networks.training.descent import Adam, Optimiser

    network, inputs, taken = build(student, 8, seed=0), torch.zeros(batch, 3, SIZE, SIZE), []
    optimiser = Optimiser(network.parameters(), Adam(1e-3))
    for _ in range(STEPS):
        started = time.process_time()
        optimiser.zero_grad()
        network(inputs).sum().backward()
        optimiser.step()
        taken.append(time.process_time() - started)
    return median(taken)


def cost_fault(calls: Sequence[PricedCall], student: str, step_s: Callable[[str, int], float] = step_s) -> str:
    """Compare the processor time of a member's calls with that of training steps of as much work.

    A call may also take the time of a step with one frame, which is mostly that of starting operators.
    """
    for verb in dict.fromkeys(call.verb for call in calls):
        mine = [call for call in calls if call.verb == verb]
        mine = [call for call in mine if not call.audited] or mine
        some = mine[len(mine) // 2]
        price = step_s(student, some.batch) / (some.batch * some.cost.macs * PASSES)
        predicted_s, took_s = price * median(call.macs for call in mine), median(call.seconds for call in mine)
        if took_s > FACTOR * (predicted_s + step_s(student, 1)) + FLOOR_S:
            times = f"{took_s / predicted_s:.1f} x the" if predicted_s else f"{1000 * took_s:.0f} ms of"
            return (
                f"{verb} takes {times} processor time of the work that is charged: use torch operators, or the NumPy "
                "functions of driftlab.platform.core.counted"
            )
    return ""
