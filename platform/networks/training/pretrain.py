"""Pre-train the networks that a run starts from: a general student, and a more accurate teacher.

Nothing is downloaded. The training data are frames of many random scenes, rendered with seeds that no experiment uses,
so that a network is never pre-trained on the stream that tests it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from driftlab.datasets.catalogue import SET_PREFIX, WORKLOADS, find_workload, open_stream
from driftlab.datasets.domains.orders import Domain
from driftlab.datasets.frames import Frames
from driftlab.datasets.labelled import class_names, open_set
from driftlab.datasets.streets.presets import CLASSES
from driftlab.errors import DataError, RequestError
from driftlab.platform.core.limits import limited
from driftlab.platform.core.records import Weights
from driftlab.platform.core.seeding import rng_for, seed_for
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.named import task_of
from driftlab.platform.networks.predict import load, state_of, to_input, torch_device
from driftlab.platform.networks.training.descent import Adam, Descent
from driftlab.platform.networks.training.states import end_training, note_step
from driftlab.platform.networks.training.training_loop import (
    DataSplits,
    LabelledFrames,
    convert_set,
    deterministic,
    one_thread,
)
from driftlab.platform.networks.training.weight_files import read_weights
from driftlab.platform.networks.vector import bind_vector
from driftlab.platform.networks.zoo import ZOO

if TYPE_CHECKING:
    from torch import nn

    from driftlab.platform.networks.training.artifacts import FamilyRecipe, Recipe, SourceSummaryRecipe

COUNTER = "num_batches_tracked"  # entry of batch norms that some files lack
MAX_NAMES = 3  # in a message
MAX_SEVERITY = 5  # of shifted training frames
FRAMES = 1600  # training frames: networks score only 2 to 3 points lower on new scenes than on these
VAL_FRAMES, TEST_FRAMES = 400, 1600  # standard error of 1 point at an accuracy of 0.8, for 1600 independent frames
MIN_FRAMES = 64  # for a family, even if its network was trained on fewer
FRAMES_PER_STREAM = 4
STREAM_S = 240.0
REPORTS = 50  # of a training, to the process that waits for it
WARM_UP = 0.1  # share of steps with a rising learning rate


def pretrain(recipe: Recipe, before: Weights | None = None) -> Weights:
    """Build a network and train it on frames of all workloads of its family.

    Equal recipes give equal bits.

    `before` holds the weights of `recipe_elsewhere`, if the recipe names a pre-training set.
    """
    with one_thread():
        model = begin(recipe)
        if recipe.elsewhere:
            assert before is not None, "the weights of recipe_elsewhere are missing"
            _load_except_head(model, recipe, before)
        if recipe.steps:
            try:
                _train(model, recipe, _training_frames(recipe))
            finally:
                end_training(recipe)
        return state_of(_replace_head(model, recipe) if recipe.fresh_head else model)


def begin(recipe: Recipe) -> torch.nn.Module:
    """Build a network, and load the weights of its file if the recipe names one."""
    classes = len(CLASSES) if recipe.fresh_head else recipe.classes
    seed = seed_for(recipe.seed, "pretrain", "weights")
    model = build(recipe.network, classes, seed=seed, size=(recipe.height, recipe.width))
    if recipe.start:
        begin_from(model, recipe.start, heads_of(recipe), trained=recipe.steps > 0)
    return model


def heads_of(recipe: Recipe) -> tuple[str, ...]:
    """Name the layers that depend on the classes: as in the zoo, else by their shapes."""
    if recipe.network in ZOO:
        return (ZOO[recipe.network].head,)
    size = (recipe.height, recipe.width)
    some, more = (build(recipe.network, count, seed=0, size=size).state_dict() for count in (5, 6))
    return tuple(sorted({name.rpartition(".")[0] for name in some if some[name].shape != more[name].shape}))


def _load_except_head(model: torch.nn.Module, recipe: Recipe, before: Weights) -> None:
    """Copy the weights that were trained on another labelled set, except the head."""
    heads = tuple(f"{head}." for head in heads_of(recipe))
    kept = {name: torch.from_numpy(value) for name, value in before.items() if not name.startswith(heads)}
    model.load_state_dict({**model.state_dict(), **kept})


def recipe_elsewhere(recipe: Recipe) -> Recipe:
    """Return the recipe of training on the pre-training set."""
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


def _training_frames(recipe: Recipe) -> LabelledFrames:
    """Return the training frames: the images of a labelled set, else rendered frames of many streams."""
    if uses_labelled_set(recipe):
        return draw_data(recipe).train
    return shift_part(draw_pretraining_frames(recipe, min(FRAMES, recipe.steps * recipe.batch)), recipe, "train")


def _replace_head(trained: torch.nn.Module, recipe: Recipe) -> torch.nn.Module:
    """Return the network for the recipe's classes: a random head, trained weights elsewhere."""
    seed, size = seed_for(recipe.seed, "pretrain", "head"), (recipe.height, recipe.width)
    model, wider = (build(recipe.network, recipe.classes + more, seed=seed, size=size) for more in (0, 1))
    # The head consists of the entries whose shape depends on the number of classes.
    fresh, wide = model.state_dict(), wider.state_dict()
    kept = {name: value for name, value in trained.state_dict().items() if fresh[name].shape == wide[name].shape}
    model.load_state_dict({**fresh, **kept})
    return model


def build_family(recipe: FamilyRecipe, weights: Weights, limit_s: float = math.inf) -> Weights:
    """Build the family of a trained network on its device; RunError if the member exceeds the time limit."""
    network, scaling = recipe.network, limited(recipe.scaling, limit_s)
    model = build(network.network, network.classes, seed=0, size=(network.height, network.width)).eval()
    load(model, weights)
    model.to(torch_device(network.device))
    stored: Weights = scaling.store(scaling.build(model, draw_data(network) if scaling.needs_data else None))
    return stored


def build_pack(recipe: SourceSummaryRecipe, stored: Weights, limit_s: float = math.inf) -> Weights:
    """Return an adaptation member's summary of a family of networks and its training data."""
    network, scaling = recipe.family.network, limited(recipe.family.scaling, limit_s)
    model = build(network.network, network.classes, seed=0, size=(network.height, network.width)).eval()
    model.to(torch_device(network.device))
    family = scaling.restore(model, stored, (network.height, network.width))
    with deterministic(seed_for(network.seed, "pack")):
        pack: Weights = limited(recipe.adaptation, limit_s).summarise_source_family(scaling, family, draw_data(network))
    return {name: np.array(value, order="C") for name, value in pack.items()}  # a view would be pickled with its base


def draw_data(recipe: Recipe) -> DataSplits:
    """Return the data of a family: the network's training frames, with validation and test frames.

    Training and validation frames are in the source domains of the recipe in turn.
    """
    data = _plain_data(recipe)
    if not recipe.shifts:
        return data
    train, val = (shift_part(frames, recipe, part) for frames, part in ((data.train, "train"), (data.val, "val")))
    return replace(data, train=train, val=val, plain=data.train)


def shift_part(frames: LabelledFrames, recipe: Recipe, part: str) -> LabelledFrames:
    """Return frames of which one stays as it is, the next has the first shift of the recipe, and so on."""
    from driftlab.datasets.domains.shifts import shifted  # cv2

    images = frames.images.copy()
    for number, shift in enumerate(recipe.shifts, start=1):
        rng = rng_for(recipe.seed, "pretrain", "shift", part, shift)
        for row in range(number, len(images), len(recipe.shifts) + 1):
            images[row] = shifted(images[row], Domain(shift, MAX_SEVERITY), rng)
    return LabelledFrames(images, frames.labels)


def _plain_data(recipe: Recipe) -> DataSplits:
    """Return the data of a family without shifts."""
    if uses_labelled_set(recipe):
        before = (lambda: _data_of_set(recipe_elsewhere(recipe))) if recipe.elsewhere else None
        return replace(_data_of_set(recipe), elsewhere=before)
    count = max(MIN_FRAMES, min(FRAMES, recipe.steps * recipe.batch))
    train = draw_pretraining_frames(recipe, count)
    val = draw_pretraining_frames(recipe, min(count, VAL_FRAMES), "val")
    test = draw_pretraining_frames(recipe, min(count, TEST_FRAMES), "test")
    return DataSplits(task_of(recipe.network), recipe.classes, train, val, test, recipe.seed)


def uses_labelled_set(recipe: Recipe) -> bool:
    """Return whether the training data are the images of a labelled set."""
    return recipe.workloads.startswith(SET_PREFIX)


def _data_of_set(recipe: Recipe) -> DataSplits:
    """Open a labelled set with at most as many images as all steps can use.

    Its splits do not depend on the seed.
    """
    name, size = recipe.workloads.removeprefix(SET_PREFIX), (recipe.height, recipe.width)
    found = open_set(name, size=size, counts=max(MIN_FRAMES, recipe.steps * recipe.batch))
    if not len(found.train.classes):
        raise DataError(
            f"Labelled set '{name}' has no images to train on. Give student.weights, or train on the set without "
            f"shift: domains:set:cifar10:FOLDER with shifts: ['set:{name}']."
        )
    return convert_set(found, seed=recipe.seed)


def draw_pretraining_frames(recipe: Recipe, count: int, part: str = "pretrain") -> LabelledFrames:
    """Render frames at random times of many streams, equally many per workload; parts share no stream."""
    family = sorted(name for name in WORKLOADS if name.startswith(f"{recipe.workloads}/"))
    streams = math.ceil(count / FRAMES_PER_STREAM)
    parts = [_frames(recipe, family[number % len(family)], part, number) for number in range(streams)]
    truths = [truth for part in parts if (truth := task_of(recipe.network).truth(part)) is not None]
    return LabelledFrames(np.concatenate([part.images for part in parts]), np.concatenate(truths))


def _frames(recipe: Recipe, workload: str, part: str, number: int) -> Frames:
    seed = seed_for(recipe.seed, part, workload, number)
    params: dict[str, Any] = dict(recipe.lessons)
    if find_workload(workload).classes is None:
        params["classes"] = recipe.classes
    size = {"height": recipe.height, "width": recipe.width}
    stream = open_stream(workload, seed=seed, **size, fps=30.0, duration_s=STREAM_S, **params)
    return stream.at(np.sort(rng_for(seed, "times").uniform(0, STREAM_S, FRAMES_PER_STREAM)))


def _train(model: torch.nn.Module, recipe: Recipe, frames: LabelledFrames) -> None:
    rng = rng_for(recipe.seed, "pretrain", "order")
    task, device = task_of(recipe.network), torch_device(recipe.device)
    precision = torch.autocast(device.type, torch.bfloat16, enabled=recipe.precision == "bfloat16")
    model.to(device).train()
    with bind_vector(model) as flat:
        zeros = np.zeros(flat.layout.size, dtype=np.float32)
        optimiser = Descent(Adam(recipe.lr), flat.weights, (zeros, zeros), 0)  # torch.optim takes 1.5 s to import
        for step in range(recipe.steps):
            rows = rng.integers(len(frames.images), size=recipe.batch)
            images, labels = to_input(frames.images[rows]), frames.labels[rows]
            if not uses_labelled_set(recipe) and rng.random() < 0.5:  # only streets are invariant to mirroring
                images, labels = images.flip(-1), task.mirror(labels, recipe.width)
            flat.gradients.zero_()
            with precision:  # forward passes only: weights, losses and moments stay float32
                output = model(images.to(device))
            loss = task.loss(output.float(), labels)
            if loss is not None:
                torch.autograd.backward(loss)
                optimiser.rule = Adam(recipe.lr * _rate_factor(step / recipe.steps))
                optimiser.step(flat.gradients)
                if step % max(1, recipe.steps // REPORTS) == 0:
                    note_step(recipe, step, float(loss.detach()))


def _rate_factor(progress: float) -> float:
    """Return the factor of the learning rate: linear warm-up, then cosine decay to 0."""
    if progress < WARM_UP:
        return (progress + 1e-2) / (WARM_UP + 1e-2)
    return 0.5 * (1 + math.cos(math.pi * (progress - WARM_UP) / (1 - WARM_UP)))


def begin_from(model: nn.Module, path: str, heads: tuple[str, ...], *, trained: bool) -> None:
    """Load a file's weights; heads for other classes stay random if the network is trained afterwards."""
    weights, own = read_weights(path), model.state_dict()
    if "network." in next(iter(own)) and not any(name.startswith("network.") for name in weights):
        weights = {f"network.{name}": value for name, value in weights.items()}  # torchvision's names
    optional = {name for name in own if trained and name.startswith(tuple(f"{head}." for head in heads))}
    fits = {name: value for name, value in weights.items() if name in own and value.shape == own[name].shape}
    missing = [name for name in own if name not in fits and name not in optional and not name.endswith(COUNTER)]
    unknown = [name for name in weights if name not in own]
    if missing or unknown:
        faults = [
            f"{fault} {', '.join(names[:MAX_NAMES])}{' and more' if len(names) > MAX_NAMES else ''}"
            for fault, names in (("without or with another shape of", missing), ("with unknown", unknown))
            if names
        ]
        raise RequestError(
            f"The weights in '{path}' are of another network: {' and '.join(faults)}. If only the classes differ, "
            f"train the head '{', '.join(heads)}' with student.pretrain_steps above 0."
        )
    model.load_state_dict({**own, **fits})
