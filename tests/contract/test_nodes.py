"""The contract of every class of nodes: equal calls return equal replies, also from a checkpoint."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from state_factory import DEVICE, SERVER

from driftlab.datasets.catalogue import open_stream
from driftlab.datasets.frames import Frames
from driftlab.platform.adaptation.base import Phase
from driftlab.platform.core.records import Reply
from driftlab.platform.core.registry import Member, import_class
from driftlab.platform.lab.builds import settings_of
from driftlab.platform.lab.cells import cells_of
from driftlab.platform.lab.progress import Progress
from driftlab.platform.lab.read import parse
from driftlab.platform.networks import state
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.cost_counter import count_cost
from driftlab.platform.networks.predict import state_of
from driftlab.platform.networks.tasks.tasks import SEGMENTATION
from driftlab.platform.networks.training.artifacts import FamilyRecipe, Recipe, SourceSummaryRecipe
from driftlab.platform.sim.inline import NODE_CLASSES, InlineBackend
from driftlab.platform.sim.nodes.camera import CameraNode
from driftlab.platform.sim.nodes.learner import LearnerNode
from driftlab.platform.sim.setting import AppNodeConfig, StreamSpec, StudentSpec, TeacherSpec
from driftlab.platform.streaming.base import DownlinkPlan, Sampling
from driftlab.platform.world import hardware
from driftlab.platform.world.link import MessageDamage

HEIGHT, WIDTH, CLASSES, FPS = 32, 48, 8, 4.0
STREAM = StreamSpec("streets/running", 3, HEIGHT, WIDTH, FPS, 20.0)
STUDENT = StudentSpec(
    "half", CLASSES, HEIGHT, WIDTH, Member("adaptation", "distill"), Member("scaling", "fixed"), seed=5
)
TENT = Member("adaptation", "tent", (("stream_batch", 3), ("training_runs", "concurrent")))
WATCHER = AppNodeConfig(
    "device-0",
    "segmentation",
    replace(STUDENT, adaptation=Member("adaptation", "frozen")),
    replace(hardware.find("raspberry-pi-4"), macs_per_s=6e6),  # slower than the camera: some frames are skipped
    count_cost(build("half", CLASSES, seed=0), HEIGHT, WIDTH),
    snapshot_times_s=(0.5, 3.0),
)
SAMPLING = Sampling((0.25, 1.0), 1.0)


@dataclass(frozen=True)
class Script:
    """How a node is made, and the calls of one session."""

    kind: str
    made_from: tuple[Any, ...]
    calls: tuple[tuple[str, tuple[Any, ...]], ...]

    def node(self) -> Any:
        return import_class(NODE_CLASSES[self.kind])(*self.made_from)


@cache
def frames(start_s: float, stop_s: float) -> Frames:
    stream = open_stream(
        STREAM.workload, seed=STREAM.seed, height=HEIGHT, width=WIDTH, fps=FPS, duration_s=STREAM.duration_s
    )
    found = stream.at(np.arange(start_s, stop_s, 1 / FPS))
    for array in (found.times_s, found.images, found.scenes, found.labels):
        array.flags.writeable = False  # as shared memory gives them
    return found


@cache
def weights(network: str = "half") -> Mapping[str, Any]:
    return state_of(build(network, CLASSES, seed=1))


@cache
def updates() -> tuple[bytes, ...]:
    """Make the updates that a learner sends in two phases."""
    learner, found = LearnerNode(STUDENT, weights()), []
    for number in range(2):
        seen = frames(2 * number, 2 * number + 2)
        learner.store(seen, seen.labels)
        found.append(learner.train(DownlinkPlan(None, Phase(3))).payload)
    return tuple(found)


@cache
def updates_of_buffers() -> tuple[bytes, ...]:
    """Make updates that change buffers only: two in a chain, and a third that depends on neither."""
    learner, found = LearnerNode(replace(STUDENT, adaptation=SERVER), weights()), []
    for number in range(2):
        seen = frames(2 * number, 2 * number + 2)
        learner.store(seen, seen.labels)
        found.append(learner.train(DownlinkPlan(None, Phase(1))).payload)
    return (*found, learner.resend().payload)


def rows_of_a_cell(score: float) -> Mapping[str, Any]:
    asked = dict.fromkeys(("experiment", "system", "streaming", "adaptation", "scaling", "scheduling"), "x")
    return {
        "runs": [{**asked, "workload": "w", "fleet": "f", "devices": 1, "seed": 0, "status": "done", "score": score}]
    }


Step = tuple[str, tuple[Any, ...]]


def stored(start_s: float) -> Step:
    return "store", (frames(start_s, start_s + 2), frames(start_s, start_s + 2).labels)


def watched(start_s: float, truth: Any = None) -> Step:
    return "run_stream", (frames(start_s, start_s + 2), truth, start_s + 2, ((start_s, 1.0),))


def followed(start_s: float) -> Step:
    """Make an application that infers on half of the processor and trains on the other half."""
    return "run_stream", (frames(start_s, start_s + 2), None, start_s + 2, ((start_s, 0.5),), ((start_s, 0.5),))


def device_scripts() -> list[Script]:
    steps = (
        ("capture", (0.0, 1.5)),
        ("upload", (SAMPLING,)),
        ("sample", (Sampling((1.25,), 1.5),)),
        ("capture", (1.5, 3.0)),
        ("sample_with_truth", ((0.25, 1.0),)),
        ("detect_boundary", ((1.0, 1.25, 1.5),)),
    )
    return [Script("device", (STREAM,), steps)]


def teacher_scripts(sent: bytes) -> list[Script]:
    first, second = ("label", (frames(0, 2),)), ("label", (frames(2, 4),))
    return [
        Script(
            "teacher",
            (TeacherSpec(border_noise=0.5),),
            (first, ("receive", (sent, SAMPLING, (HEIGHT, WIDTH))), second),
        ),
        Script(
            "teacher",
            (TeacherSpec(kind="network", network="tiny"), weights("tiny")),
            (first, ("pack", (frames(0, 1).labels,)), second),
        ),
    ]


def learner_script(sent: bytes) -> Script:
    size = (HEIGHT, WIDTH)
    return Script(
        "learner",
        (STUDENT, weights()),
        (
            ("receive", (sent, SAMPLING, size)),
            ("receive", (sent, SAMPLING, size, MessageDamage("cut", 1))),
            stored(0),
            ("train", (DownlinkPlan(None, Phase(3)),)),
            stored(2),
            ("run_trials", (DownlinkPlan(None, Phase(3)), (Phase(1), Phase(2)))),
            ("estimate", (Phase(1),)),
            ("describe_samples", ()),
            ("recall_expert", (0.1, 0.01, (1,), state.read(build("half", CLASSES, seed=2)))),
            ("store_expert", ()),
            ("foresee", ((Phase(1), Phase(2)), frames(3.5, 5))),
            ("drop_samples_before", (0.5,)),
            ("train", (DownlinkPlan(None, Phase(3), oldest_s=1.0), True)),
            ("check", (frames(3.5, 5),)),
            ("train", (DownlinkPlan(None, Phase(2, stop_score=0.99), dense=True),)),
            ("switch", (0,)),
            ("train", (DownlinkPlan(None, Phase(2)),)),
            ("train", (DownlinkPlan(None, Phase(2), oldest_s=99.0),)),
            ("resend", ()),
            ("leave_domain", (1.0,)),
            ("finish", ()),
        ),
    )


def learner_of_buffers_script() -> Script:
    train = ("train", (DownlinkPlan(None, Phase(1)),))
    return Script(
        "learner",
        (replace(STUDENT, adaptation=SERVER), weights()),
        (stored(0), train, stored(2), train, ("resend", ()), ("switch", (0,)), train),
    )


def updated_application_script() -> Script:
    first, second = updates()
    return Script(
        "application",
        (replace(WATCHER, uses_statistics=True), weights()),
        (
            watched(0),
            ("stream_statistics", ()),
            ("apply", (first, 2.6)),
            watched(2),
            ("apply", (first, 4.1)),
            ("apply", (second, 4.1)),
            ("pack", ()),
            ("predict_images", (frames(4, 5).images,)),
            ("switch", (0,)),
            ("begin_at", (40,)),
            watched(4, truth=frames(4, 6).labels),
            ("run_frames", (frames(6, 8), 8, ((6, 1.0),))),
            ("collect_rows", ()),
            ("finish", ()),
        ),
    )


def tracking_application_script() -> Script:
    labels = SEGMENTATION.pack(frames(1, 2).labels[0])
    return Script(
        "application",
        (replace(WATCHER, tracks=True), weights()),
        (watched(0), ("track", (labels, 1.0, 2.1)), watched(2), ("track", (b"torn", 2.0, 4.0)), watched(4)),
    )


def application_of_buffers_script() -> Script:
    first, (moved, lost, whole) = updates()[0], updates_of_buffers()
    return Script(
        "application",
        (WATCHER, weights()),
        (
            ("apply", (moved, 0.6)),
            watched(0),
            ("apply", (first, 2.0)),
            ("apply", (whole, 2.6)),
            watched(2),
            ("apply", (lost, 3.0)),
            ("switch", (0,)),
            ("finish", ()),
        ),
    )


def adapting_application_scripts() -> list[Script]:
    """Applications that learn on their stream."""
    return [
        Script(
            "application",
            (replace(WATCHER, student=replace(STUDENT, adaptation=DEVICE)), weights()),
            (watched(0), ("finish", ()), watched(2), ("switch", (0,)), ("finish", ())),
        ),
        Script(
            "application",
            (replace(WATCHER, student=replace(STUDENT, adaptation=TENT)), weights()),
            (followed(0), followed(2), ("switch", (0,)), followed(4), ("finish", ())),
        ),
    ]


def stateless_scripts(folder: Path) -> list[Script]:
    family = FamilyRecipe(Recipe("half", height=HEIGHT, width=WIDTH, steps=0), STUDENT.scaling)
    pack = SourceSummaryRecipe(family, Member("adaptation", "tent"))
    writes = (("write", ("a", rows_of_a_cell(0.1))), ("write", ("a", rows_of_a_cell(0.2))))
    return [
        Script("builder", (), (("build", (family,)), ("pack", (pack,)))),
        Script("recorder", (str(folder),), writes),
    ]


def scripts(folder: Path) -> list[Script]:
    sent = CameraNode(STREAM).upload(SAMPLING).payload
    return [
        *device_scripts(),
        *teacher_scripts(sent),
        learner_script(sent),
        updated_application_script(),
        tracking_application_script(),
        learner_of_buffers_script(),
        application_of_buffers_script(),
        *adapting_application_scripts(),
        *stateless_scripts(folder),
        cell_script(),
    ]


def cell_script() -> Script:
    document = {
        "name": "whole",
        "systems": ["no_custom"],
        "workloads": [{"name": STREAM.workload, "duration_s": 2, "fps": 2, "height": HEIGHT, "width": WIDTH}],
        "window_s": 1.0,
        "bounds": False,
        "student": {"network": "half", "pretrain_steps": 0},
    }
    (cell,), (setup,) = cells_of(parse(document)), settings_of(parse(document), InlineBackend(), Progress()).values()
    jobs = setup.networks
    numbered = setup.with_networks({job: number for number, job in enumerate(jobs)})
    return Script(
        "cell", (cell, numbered, *[job.reply.payload for job in jobs]), (("advance", (1.0,)), ("advance", (2.0,)))
    )


def called(node: Any, calls: Sequence[tuple[str, tuple[Any, ...]]]) -> list[Any]:
    return [plain(getattr(node, verb)(*args)) for verb, args in calls]


def plain(value: Any) -> Any:
    """Convert a reply into values that can be compared, without the time of the host."""
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if is_dataclass(value) and not isinstance(value, type):
        return type(value).__name__, {
            field.name: plain(getattr(value, field.name)) for field in fields(value) if field.name != "host_seconds"
        }
    if isinstance(value, Mapping):
        return {key: plain(below) for key, below in value.items() if not str(key).startswith("host_")}
    if isinstance(value, list | tuple):
        return [plain(below) for below in value]
    return "nan" if isinstance(value, float) and np.isnan(value) else value


@pytest.fixture(scope="module")
def all_scripts(tmp_path_factory: pytest.TempPathFactory) -> list[Script]:
    return scripts(tmp_path_factory.mktemp("run"))


def test_every_kind_has_a_script(all_scripts):
    assert {script.kind for script in all_scripts} == set(NODE_CLASSES)


def test_every_verb_is_called(all_scripts):
    verbs: dict[str, set[str]] = {}
    for script in all_scripts:
        verbs.setdefault(script.kind, set()).update(verb for verb, _ in script.calls)
    for kind in NODE_CLASSES:
        methods = {
            name
            for name, member in vars(import_class(NODE_CLASSES[kind])).items()
            if callable(member) and not isinstance(member, property) and not name.startswith("_")
        }
        assert methods == verbs[kind], kind


@pytest.mark.parametrize("number", range(13))
class TestEveryNode:
    @pytest.fixture
    def script(self, all_scripts, number) -> Script:
        assert len(all_scripts) == 13
        return all_scripts[number]

    def test_every_verb_returns_a_reply(self, script):
        node = script.node()
        for verb, args in script.calls:
            assert isinstance(getattr(node, verb)(*args), Reply)

    def test_the_same_calls_return_the_same_replies(self, script):
        assert called(script.node(), script.calls) == called(script.node(), script.calls)

    @pytest.mark.parametrize("carry", [lambda node: pickle.loads(pickle.dumps(node)), copy.deepcopy])
    def test_it_continues_from_a_checkpoint_at_any_point(self, script, carry: Callable[[Any], Any]):
        whole = called(script.node(), script.calls)
        node, answers = carry(script.node()), []
        for call in script.calls:
            answers += called(node, [call])
            node = carry(node)
        assert answers == whole

    def test_a_checkpoint_is_independent_of_later_calls(self, script):
        """A call that is repeated after a fault must start from the same state as the first call."""
        node = script.node()
        for verb, args in script.calls:
            kept = pickle.dumps(node)
            reply = plain(getattr(node, verb)(*args))
            assert plain(getattr(pickle.loads(kept), verb)(*args)) == reply

    def test_its_arguments_stay_as_they_were(self, script):
        before = plain(script.made_from), plain(script.calls)
        called(script.node(), script.calls)
        assert (plain(script.made_from), plain(script.calls)) == before

    def test_facts_and_rows_are_small(self, script):
        """They go through the driver: no frames, no weights (snapshots, a few per run, are the exception)."""
        node = script.node()
        for verb, args in script.calls:
            reply = getattr(node, verb)(*args)
            rows = {table: chunks for table, chunks in reply.rows.items() if table != "snapshots"}
            assert len(pickle.dumps((reply.facts, rows))) < 8_000, verb
