"""Check weights from files and networks from outside the zoo, and list the methods that apply."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np

from driftlab.errors import RequestError, first_line
from driftlab.platform.core import plugins
from driftlab.platform.core.registry import FAMILIES, Member
from driftlab.platform.core.seeding import rng_for
from driftlab.platform.networks.named import task_of
from driftlab.platform.networks.tasks.tasks import CLASSIFICATION, DETECTION, SEGMENTATION, Task, TaskLabels
from driftlab.platform.networks.training.artifacts import Recipe

if TYPE_CHECKING:
    from torch import nn

    from driftlab.platform.adaptation.base import Adaptation
    from driftlab.platform.lab.read import Experiment
    from driftlab.platform.networks.training.training_loop import DataSplits
    from driftlab.platform.scaling.base import Scaling

FRAMES = 4
LACKING = "the network has no"  # beginning of a reason that does not depend on the frames
STEPS = 2  # of training after which a method counts as applicable
TOLERANCE = 1e-3  # by which the output of a frame may differ in another batch
Fact = tuple[str, str]  # a property of a network, and its value


class _TrainsOn(BaseException):
    """Raised at the end of a trial; `except Exception` in a member does not catch it."""


@dataclass(frozen=True)
class Applicability:
    """A method, and the reason why it does not apply to a network; empty if it does."""

    method: str  # as in adaptation/tent
    reason: str

    @property
    def row(self) -> tuple[str, str, str]:
        return self.method, "no" if self.reason else "yes", self.reason


def faults_of(experiment: Experiment) -> list[str]:
    """List why files of weights do not fit, and why networks from outside, or methods on them, cannot run."""
    return [
        f"{plugins.drop_folder(recipe.network)}: {fault}"
        for recipe in recipes_in(experiment)
        for fault in _network_faults(recipe) or _method_faults(recipe, experiment)
    ]


def recipes_in(experiment: Experiment) -> list[Recipe]:
    """List the networks from outside or with weights from a file, each once for all seeds."""
    apps = [app.network for workload in experiment.workloads for app in workload.apps]
    names = (experiment.student.network, experiment.teacher.network, *apps)
    if not (experiment.student.weights or experiment.teacher.weights or any(map(_is_outside, names))):
        return []
    from driftlab.platform.lab.builds import recipes_of

    found = [replace(recipe.network, seed=0) for recipe in recipes_of(experiment).values()]
    return [one for one in dict.fromkeys(found) if one.start or _is_outside(one.network)]


def applicability_in(experiment: Experiment) -> dict[str, list[Applicability]]:
    """Return, for each network from outside, whether adaptation and scaling members apply to it."""
    return {
        plugins.drop_folder(recipe.network): applicability(recipe)
        for recipe in recipes_in(experiment)
        if _is_outside(recipe.network)
    }


def examine(recipe: Recipe) -> list[Fact]:
    """Return the facts about a network; RequestError names the first requirement that it does not meet."""
    import torch

    from driftlab.platform.networks import state
    from driftlab.platform.networks.predict import to_input
    from driftlab.platform.networks.pruning.surgery import groups
    from driftlab.platform.networks.training.pretrain import begin

    model, task = begin(recipe).eval(), task_of(recipe.network)
    images, labels = _frames(recipe, task)
    inputs = to_input(images)
    with torch.inference_mode():
        output = _run(model, inputs, "in evaluation")
        _check_output(output, recipe, task)
        if not torch.equal(output, _run(model, inputs, "in evaluation")):
            raise RequestError("in evaluation, the same frames give two outputs; switch randomness off in eval()")
        alone = _run(model, inputs[:1], "in evaluation on one frame")
    if not torch.allclose(alone[0], output[0], rtol=TOLERANCE, atol=TOLERANCE):
        raise RequestError("in evaluation, the output of a frame depends on the others of its batch")
    kept = state.read(model)
    loss = task.loss(_run(model.train(), inputs, "in training"), labels)
    if loss is None or not loss.requires_grad:
        raise RequestError("in training, its output has no gradient; do not detach it")
    torch.autograd.backward(loss)
    unreached = [name for name, one in model.named_parameters() if one.requires_grad and one.grad is None]
    state.write(model, kept)
    try:
        channels = groups(model.eval(), inputs[:1])
        cutting = f"{len(channels.sizes)} groups of channels"
    except RequestError as error:
        cutting = f"cannot be cut: {first_line(error)}"
    try:
        _run(model.train(), inputs[:1], "")
        single = "works"
    except RequestError as error:
        single = f"fails: {error}"
    return [
        ("task", task.name),
        ("parameters", f"{sum(one.numel() for one in model.parameters()):,}"),
        ("input", f"{FRAMES} x 3 x {recipe.height} x {recipe.width}"),
        ("output", " x ".join(map(str, output.shape))),
        ("training on one frame", single),
        ("weights without a gradient", ", ".join(unreached) or "none"),
        ("channels", cutting),
    ]


def applicability(recipe: Recipe, members: Iterable[Member] | None = None) -> list[Applicability]:
    """Try methods on a network and a few frames, by default all adaptation and scaling members."""
    return [_try(recipe, member) for member in (_all_members() if members is None else members)]


@cache
def _try(recipe: Recipe, member: Member) -> Applicability:
    from driftlab.platform.networks.training.pretrain import begin
    from driftlab.platform.networks.training.training_loop import DataSplits, LabelledFrames

    task, model = task_of(recipe.network), begin(recipe).eval()
    part = LabelledFrames(*_frames(recipe, task))
    data = DataSplits(task, recipe.classes, part, part, part)
    trial = _try_adaptation if member.family == "adaptation" else _try_scaling
    try:
        with _few_steps():
            reason = trial(member.make(), model, data)
    except _TrainsOn:
        reason = ""
    except Exception as error:  # a network from outside may make a member fail in any way
        reason = first_line(error) if isinstance(error, RequestError) else f"{type(error).__name__}: {error}"
    return Applicability(f"{member.family}/{plugins.drop_folder(member.name)}", reason)


@contextmanager
def _few_steps() -> Iterator[None]:
    """Raise _TrainsOn after a few training steps: a count does not depend on the speed of the host."""
    import torch

    from driftlab.platform.networks.training.descent import Descent, Optimiser

    taken = itertools.count(1)

    def counted(step: Callable[..., Any]) -> Callable[..., Any]:
        def take(*given: Any, **named: Any) -> Any:
            done = step(*given, **named)
            if next(taken) >= STEPS:
                raise _TrainsOn
            return done

        return take

    with ExitStack() as stack:
        for optimiser in (Descent, Optimiser, torch.optim.Adam):
            stack.enter_context(patch.object(optimiser, "step", counted(optimiser.step)))
        yield


def _is_outside(name: str | None) -> bool:
    return name is not None and plugins.is_outside(name)


def _all_members() -> list[Member]:
    return [Member(family, name) for family in ("adaptation", "scaling") for name in FAMILIES[family]]


def _members_in(experiment: Experiment) -> list[Member]:
    from driftlab.platform.lab.cells import systems_of

    used = [one for system in systems_of(experiment) for one in (system.adaptation, system.scaling)]
    return list(dict.fromkeys(used))


@cache
def _network_faults(recipe: Recipe) -> tuple[str, ...]:
    from driftlab.platform.networks.training.pretrain import begin

    try:
        if _is_outside(recipe.network):
            examine(recipe)
        else:
            begin(recipe)
    except RequestError as error:
        return (str(error),)
    return ()


def _method_faults(recipe: Recipe, experiment: Experiment) -> list[str]:
    if not _is_outside(recipe.network):
        return []
    found = applicability(recipe, _members_in(experiment))
    return [f"{one.method} does not apply: {one.reason}" for one in found if one.reason]


def _frames(recipe: Recipe, task: Task) -> tuple[np.ndarray[Any, Any], TaskLabels]:
    """Return frames and labels without meaning, the same in every process."""
    from driftlab.platform.networks.tasks import boxes

    height, width = recipe.height, recipe.width
    rng = rng_for(0, "pretrain", "order")
    images = rng.integers(0, 256, (FRAMES, height, width, 3), np.uint8)
    if task is SEGMENTATION:
        return images, np.arange(images[..., 0].size).reshape(images.shape[:3]).astype(np.uint8) % recipe.classes
    if task is CLASSIFICATION:
        return images, np.arange(FRAMES) // 2 % recipe.classes
    box = np.array([[0, width / 4, height / 4, width / 2, height / 2]], np.float32)
    return images, boxes.stack([box] * FRAMES)


def _run(model: nn.Module, inputs: Any, when: str) -> Any:
    try:
        return model(inputs)
    except Exception as error:  # a network from outside may fail in any way
        shape = " x ".join(map(str, inputs.shape))
        raise RequestError(f"{when}, on {shape}, it raises {type(error).__name__}: {first_line(error)}") from error


def _check_output(output: Any, recipe: Recipe, task: Task) -> None:
    """Refuse an output that the task cannot decode."""
    import torch

    from driftlab.platform.networks.tasks import boxes

    if not isinstance(output, torch.Tensor):
        raise RequestError(f"its output is {type(output).__name__}, expected a tensor")
    classes = recipe.classes if not recipe.fresh_head else output.shape[1]
    expected: tuple[int | str, ...] = (FRAMES, classes)
    if task is SEGMENTATION:
        expected = (FRAMES, classes, recipe.height, recipe.width)
    if task is DETECTION:
        expected = (FRAMES, classes + boxes.SIDES, "rows", "columns")
    fits = len(output.shape) == len(expected) and all(
        isinstance(wanted, str) or wanted == found for wanted, found in zip(expected, output.shape, strict=True)
    )
    if not fits:
        shapes = [" x ".join(map(str, shape)) for shape in (output.shape, expected)]
        raise RequestError(f"its output has shape {shapes[0]}, {task.name} expects {shapes[1]}")
    if not bool(torch.isfinite(output).all()):
        raise RequestError("its output is not finite")


def _try_adaptation(member: Adaptation, model: nn.Module, data: DataSplits) -> str:
    """Run one call of a member; return why it does not apply, or nothing."""
    from driftlab.platform.adaptation.base import Batch, Phase

    if data.task.name not in member.tasks:
        return f"it works for {' and '.join(member.tasks)}"
    pack = member.summarise_source(model, data) if member.has_source_summary else {}
    memory = member.prepare(model, pack)
    times_s = np.arange(FRAMES, dtype=np.float64)
    batch = Batch(data.train.images, data.train.labels, rng_for(0, "pretrain", "order"), data.task, times_s)
    skipped = member.adapt(model, memory, batch, Phase(iterations=1)).skipped
    return skipped if skipped.startswith(LACKING) else ""


def _try_scaling(member: Scaling, model: nn.Module, data: DataSplits) -> str:
    """Build and measure a family."""
    family = member.build(model, data if member.needs_data else None)
    member.profile(family, data.size)
    return ""
