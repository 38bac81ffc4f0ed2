"""Train the networks that a run starts from: a general student, and a teacher of higher accuracy.

Nothing is downloaded. The training data are frames of many random scenes, drawn under seeds that no experiment uses,
so a pre-trained network has never seen the stream on which it is tested.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from driftlab.datasets.catalogue import SET_PREFIX, WORKLOADS, find_workload, open_stream
from driftlab.datasets.frames import Frames
from driftlab.datasets.labelled import class_names, open_set
from driftlab.datasets.streets.presets import CLASSES
from driftlab.errors import RequestError
from driftlab.platform.core.limits import limited
from driftlab.platform.core.records import Weights
from driftlab.platform.core.seeding import rng_for, seed_for
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.predict import load, state_of, to_input, torch_device
from driftlab.platform.networks.training.descent import Adam, Descent
from driftlab.platform.networks.training.training_loop import Data, Lessons, convert_set, deterministic, one_thread
from driftlab.platform.networks.vector import bind_vector
from driftlab.platform.networks.zoo import ZOO, task_of

if TYPE_CHECKING:
    from torch import nn

    from driftlab.platform.networks.training.artifacts import FamilyRecipe, PackRecipe, Recipe

COUNTER = "num_batches_tracked"  # of batch norms, which some files leave out
SHOWN = 3  # names in a message
FRAMES = 1600  # training frames: networks trained on them score only 2 to 3 points lower on new scenes
VAL_FRAMES, TEST_FRAMES = 400, 1600  # with 1600 an accuracy of 0.8 is known to a point, if frames are independent
MIN_FRAMES = 64  # of a family, even if its network was trained on fewer
FRAMES_OF_A_STREAM = 4
STREAM_S = 240.0
WARM_UP = 0.1  # share of the steps in which the learning rate rises


def pretrain(recipe: Recipe, before: Weights | None = None) -> Weights:
    """Build a network and train it on frames of every workload of its family; the same recipe gives the same bits.

    `before` holds what the network learned of `recipe_elsewhere`, where the recipe names another set.
    """
    with one_thread():
        classes = len(CLASSES) if recipe.fresh_head else recipe.classes
        model = build(recipe.network, classes, seed=seed_for(recipe.seed, "pretrain", "weights"))
        if recipe.start:
            begin_from(model, recipe.start, ZOO[recipe.network].head, trained=recipe.steps > 0)
        if recipe.elsewhere:
            assert before is not None, "the weights of recipe_elsewhere are missing"
            _take_over(model, recipe, before)
        if recipe.steps:
            _train(model, recipe, _lessons(recipe))
        return state_of(_begun_anew(model, recipe) if recipe.fresh_head else model)


def _take_over(model: torch.nn.Module, recipe: Recipe, before: Weights) -> None:
    """Copy the weights that were trained on another labelled set, except the head."""
    head = f"{ZOO[recipe.network].head}."
    kept = {name: torch.from_numpy(value) for name, value in before.items() if not name.startswith(head)}
    model.load_state_dict({**model.state_dict(), **kept})


def recipe_elsewhere(recipe: Recipe) -> Recipe:
    """Return the recipe of what a network learns before its own lessons."""
    name, size = recipe.elsewhere.removeprefix(SET_PREFIX), (recipe.height, recipe.width)
    return replace(
        recipe,
        workloads=recipe.elsewhere,
        classes=len(class_names(name, size=size)),
        steps=recipe.elsewhere_steps,
        content=recipe.elsewhere_content,
        lessons=(),
        elsewhere="",
        elsewhere_steps=0,
        elsewhere_content="",
    )


def _lessons(recipe: Recipe) -> Lessons:
    """Return the training data: the pictures of a labelled set, else frames of many streams."""
    if uses_labelled_set(recipe):
        return draw_data(recipe).train
    return draw_lessons(recipe, min(FRAMES, recipe.steps * recipe.batch))


def _begun_anew(taught: torch.nn.Module, recipe: Recipe) -> torch.nn.Module:
    """Keep the trained weights except the head, whose size depends on the classes: it starts anew for the new ones."""
    seed = seed_for(recipe.seed, "pretrain", "head")
    model, wider = (build(recipe.network, recipe.classes + more, seed=seed) for more in (0, 1))
    fresh, grown = model.state_dict(), wider.state_dict()
    kept = {name: value for name, value in taught.state_dict().items() if fresh[name].shape == grown[name].shape}
    model.load_state_dict({**fresh, **kept})
    return model


def build_family(recipe: FamilyRecipe, weights: Weights, limit_s: float = math.inf) -> Weights:
    """Build the family of a trained network, as its member stores it; RunError if the member exceeds the limit."""
    network, scaling = recipe.network, limited(recipe.scaling, limit_s)
    model = build(network.network, network.classes, seed=0).eval()
    load(model, weights)
    stored: Weights = scaling.store(scaling.build(model, draw_data(network) if scaling.needs_data else None))
    return stored


def build_pack(recipe: PackRecipe, stored: Weights, limit_s: float = math.inf) -> Weights:
    """Let an adaptation member summarise a family of networks and the data on which it was built."""
    network, scaling = recipe.family.network, limited(recipe.family.scaling, limit_s)
    model = build(network.network, network.classes, seed=0).eval()
    family = scaling.restore(model, stored, (network.height, network.width))
    with deterministic(seed_for(network.seed, "pack")):
        found: Weights = limited(recipe.adaptation, limit_s).pack_family(scaling, family, draw_data(network))
    return {name: np.array(value, order="C") for name, value in found.items()}  # a view would be pickled with its base


def draw_data(recipe: Recipe) -> Data:
    """Draw the data for a family: the network's own training frames, with validation and test frames."""
    if uses_labelled_set(recipe):
        before = (lambda: _data_of_set(recipe_elsewhere(recipe))) if recipe.elsewhere else None
        return replace(_data_of_set(recipe), elsewhere=before)
    count = max(MIN_FRAMES, min(FRAMES, recipe.steps * recipe.batch))
    train = draw_lessons(recipe, count)
    val = draw_lessons(recipe, min(count, VAL_FRAMES), "val")
    test = draw_lessons(recipe, min(count, TEST_FRAMES), "test")
    return Data(task_of(recipe.network), recipe.classes, train, val, test, recipe.seed)


def uses_labelled_set(recipe: Recipe) -> bool:
    """Tell whether the training data are the pictures of a labelled set."""
    return recipe.workloads.startswith(SET_PREFIX)


def _data_of_set(recipe: Recipe) -> Data:
    """Open a labelled set, at most as many pictures as all steps can use; its parts do not depend on the seed."""
    name, size = recipe.workloads.removeprefix(SET_PREFIX), (recipe.height, recipe.width)
    return convert_set(open_set(name, size=size, counts=max(MIN_FRAMES, recipe.steps * recipe.batch)), seed=recipe.seed)


def draw_lessons(recipe: Recipe, wanted: int, part: str = "pretrain") -> Lessons:
    """Render a few frames at random times of many streams, equally many per workload; no two parts share a stream."""
    family = sorted(name for name in WORKLOADS if name.startswith(f"{recipe.workloads}/"))
    streams = math.ceil(wanted / FRAMES_OF_A_STREAM)
    parts = [_frames(recipe, family[number % len(family)], part, number) for number in range(streams)]
    truths = [truth for part in parts if (truth := task_of(recipe.network).truth(part)) is not None]
    return Lessons(np.concatenate([part.images for part in parts]), np.concatenate(truths))


def _frames(recipe: Recipe, workload: str, part: str, number: int) -> Frames:
    seed = seed_for(recipe.seed, part, workload, number)
    params: dict[str, Any] = dict(recipe.lessons)
    if find_workload(workload).classes is None:
        params["classes"] = recipe.classes
    size = {"height": recipe.height, "width": recipe.width}
    stream = open_stream(workload, seed=seed, **size, fps=30.0, duration_s=STREAM_S, **params)
    return stream.at(np.sort(rng_for(seed, "times").uniform(0, STREAM_S, FRAMES_OF_A_STREAM)))


def _train(model: torch.nn.Module, recipe: Recipe, lessons: Lessons) -> None:
    rng = rng_for(recipe.seed, "pretrain", "order")
    task, device = task_of(recipe.network), torch_device(recipe.device)
    precision = torch.autocast(device.type, torch.bfloat16, enabled=recipe.precision == "bfloat16")
    model.to(device).train()
    with bind_vector(model) as flat:
        still = np.zeros(flat.layout.size, dtype=np.float32)
        walk = Descent(Adam(recipe.lr), flat.weights, (still, still), 0)  # torch.optim takes 1.5 s to import
        for step in range(recipe.steps):
            rows = rng.integers(len(lessons.images), size=recipe.batch)
            images, labels = to_input(lessons.images[rows]), lessons.labels[rows]
            if not uses_labelled_set(recipe) and rng.random() < 0.5:  # streets may be mirrored, digits may not
                images, labels = images.flip(-1), task.mirror(labels, recipe.width)
            flat.gradients.zero_()
            with precision:  # of the passes alone: weights, losses and moments keep all their bits
                output = model(images.to(device))
            loss = task.loss(output.float(), labels)
            if loss is not None:
                torch.autograd.backward(loss)
                walk.rule = Adam(recipe.lr * _pace(step / recipe.steps))
                walk.step(flat.gradients)


def _pace(done: float) -> float:
    """Return the factor of the learning rate: a linear rise, then half a cosine down to 0."""
    if done < WARM_UP:
        return (done + 1e-2) / (WARM_UP + 1e-2)
    return 0.5 * (1 + math.cos(math.pi * (done - WARM_UP) / (1 - WARM_UP)))


def begin_from(model: nn.Module, path: str, head: str, *, trained: bool) -> None:
    """Copy a file's weights into the network; a head for other classes stays random if it is trained afterwards."""
    from safetensors.torch import load_file

    given, own = load_file(Path(path).expanduser()), model.state_dict()
    if "network." in next(iter(own)) and not any(name.startswith("network.") for name in given):
        given = {f"network.{name}": value for name, value in given.items()}  # as the library names them
    anew = {name for name in own if trained and name.startswith(f"{head}.")}
    fits = {name: value for name, value in given.items() if name in own and value.shape == own[name].shape}
    missing = [name for name in own if name not in fits and name not in anew and not name.endswith(COUNTER)]
    unknown = [name for name in given if name not in own]
    if missing or unknown:
        said = [
            f"{what} {', '.join(names[:SHOWN])}{' and more' if len(names) > SHOWN else ''}"
            for what, names in (("without or with another shape of", missing), ("with unknown", unknown))
            if names
        ]
        raise RequestError(
            f"The weights in '{path}' are of another network: {' and '.join(said)}. Where only the classes differ, "
            f"let the head '{head}' be trained: student.pretrain_steps above 0."
        )
    model.load_state_dict({**own, **fits})
