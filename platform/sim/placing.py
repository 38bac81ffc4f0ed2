"""The nodes of a cell: their constructor arguments, and when they are placed."""

from __future__ import annotations

import numpy as np

from driftlab.platform.core.registry import Member
from driftlab.platform.sim.app import AppSim
from driftlab.platform.sim.runtime import CellRuntime
from driftlab.platform.sim.session import Job, NodeId
from driftlab.platform.sim.specs import AppNodeSpec, StudentSpec

FROZEN = Member("adaptation", "frozen")


def place_teachers(parts: CellRuntime) -> None:
    """Place a teacher for every task; devices share it."""
    for app, needs in parts.context.apps.items():
        weights = [needs.teacher.weights] if needs.teacher else []
        parts.session.place(NodeId("teacher", app), needs.teacher_spec, *weights)


def place_app(parts: CellRuntime, app: AppSim) -> None:
    """Place a camera and its application."""
    here = parts.learns_on_stream
    parts.session.place(app.node("device"), app.wish.stream)
    spec = AppNodeSpec(
        device=app.device,
        app=app.app,
        student=_student(parts, app, parts.cell.system.adaptation if here else FROZEN),
        hardware=app.spec.hardware,
        cost=app.context.student.cost,
        tracks=parts.streaming.returns == "labels",
        chained=parts.streaming.chained,
        picture_times_s=_picture_times(parts, app),
        notices=parts.streaming.notices,
        tells_confidence=parts.observes == "confidence",
        domains_told=parts.context.domains_told,
        detects=parts.context.domains_detected,
        learn_limit_s=parts.context.learn_limit_s,
        member_limit_s=parts.context.member_limit_s,
    )
    parts.session.place(app.node("application"), spec, app.context.student.weights, *_pack(parts, app, wanted=here))


def place_learner(parts: CellRuntime, app: AppSim) -> None:
    """Place the learner of an application, when its first samples have arrived."""
    spec = _student(parts, app, parts.cell.system.adaptation)
    pack = _pack(parts, app, wanted=True)
    limits = (parts.context.member_limit_s, parts.context.domains_told)
    parts.session.place(app.node("learner"), spec, app.context.student.weights, *limits, *pack)
    app.has_learner = True


def _pack(parts: CellRuntime, app: AppSim, *, wanted: bool) -> list[Job]:
    """Return the adaptation's summary of the source, where it needs one."""
    pack = app.context.packs.get(repr(parts.cell.system.adaptation)) if wanted else None
    return [] if pack is None else [pack]


def _student(parts: CellRuntime, app: AppSim, adaptation: Member) -> StudentSpec:
    return StudentSpec(
        network=app.context.student.name,
        classes=app.context.classes,
        height=app.wish.stream.height,
        width=app.wish.stream.width,
        adaptation=adaptation,
        scaling=parts.cell.system.scaling,
        seed=app.wish.stream.seed,
        torch_device=parts.context.torch_device,
    )


def _picture_times(parts: CellRuntime, app: AppSim) -> tuple[float, ...]:
    """Spread the report's pictures over the first stream of the first device."""
    if app.wish is not parts.cell.devices[0].apps[0] or not parts.context.pictures:
        return ()
    middles = (np.arange(parts.context.pictures) + 0.5) / parts.context.pictures * app.facts.duration_s
    return tuple(float(np.floor(middle * app.facts.fps) / app.facts.fps) for middle in middles)
