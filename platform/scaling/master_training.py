"""The steps of training a gated master: densities that fall in stages, links to its knowledge, private statistics."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from driftlab.platform.core.records import Weights
from driftlab.platform.networks.features import head_of
from driftlab.platform.networks.module_utils import batch_norms, copy_entries, normalise_by_batch, restore_entries
from driftlab.platform.networks.predict import device_of, to_input
from driftlab.platform.networks.pruning import knowledge
from driftlab.platform.networks.pruning.gating import GatedNetwork, GateSite
from driftlab.platform.networks.pruning.knowledge import LayerLink, LinkMode, LinkPenalty
from driftlab.platform.networks.training.training_loop import Course, epochs, grade
from driftlab.platform.scaling.growing import PruningContext

logger = logging.getLogger(__name__)
CALIBRATION_BATCH = 256  # frames, in the order of the data set
DRAWN_RATIOS = 2  # per step, between the smallest one and 1
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class MasterPlan:
    """How a master is trained."""

    stages: tuple[float, ...]  # the smallest keep ratio of each stage
    course: Course  # of each stage
    gate_penalty: float
    link_mode: LinkMode
    orthogonal: bool
    link_penalty: float
    bottleneck: int
    min_keep: int


@dataclass
class Trainee:
    """A master in training: the gated network, and what links it to its knowledge."""

    gated: GatedNetwork
    layers: list[str]  # with knowledge
    penalty: LinkPenalty | None = None
    links: dict[str, LayerLink] = field(default_factory=dict)


def train_master(context: PruningContext, sites: Sequence[GateSite], plan: MasterPlan) -> Trainee:
    """Gate a copy of the network, train it stage by stage, and make its knowledge exact."""
    network = copy.deepcopy(context.model)
    layers = knowledge.known_layers(network, head_of(network, context.data.example(network)))
    gated = GatedNetwork(network, sites, plan.bottleneck, plan.min_keep).to(device_of(network)).eval()
    trainee = Trainee(gated, layers)
    if plan.link_mode == "reparam":
        knowledge.parametrise(network, layers)
    elif plan.link_mode == "penalty":
        trainee.penalty = LinkPenalty(network, layers)
    for stage, floor in enumerate(plan.stages):
        _train_stage(context, trainee, plan, stage, floor)
    _finalise(context, trainee, plan)
    return trainee


def _train_stage(context: PruningContext, trainee: Trainee, plan: MasterPlan, stage: int, floor: float) -> None:
    """Train at the largest ratio, the smallest, and some between, on the same frames."""
    gated, penalty, rng = trainee.gated, trainee.penalty, context.rng("master", stage)
    learner = gated if penalty is None else nn.ModuleList([gated, penalty])
    decayed = [value for name, value in gated.network.named_parameters() if not name.endswith(".offset")]

    def learn(rows: Rows) -> None:
        images = to_input(context.data.train.images[rows]).to(device_of(gated))
        ratios = (1.0, *rng.uniform(floor, 1.0, DRAWN_RATIOS).tolist(), floor)
        for ratio in ratios:
            gated.ratio = ratio
            outputs, raw = gated.run(images)
            loss = context.data.task.loss(outputs, context.data.train.labels[rows])
            if loss is not None:
                torch.autograd.backward((loss + plan.gate_penalty * _size_of(raw.values())) / len(ratios))
        if penalty is not None:
            torch.autograd.backward(plan.link_penalty * penalty.loss(gated.network))
        for value in decayed:  # gates and mixings have no weight decay
            if value.grad is not None:
                value.grad.add_(value.detach(), alpha=plan.course.weight_decay)

    course = Course(plan.course.epochs, plan.course.learning_rate, plan.course.batch, weight_decay=0.0)
    for _ in epochs(learner, context.data, course, context.rng("master", "order", stage), learn=learn):
        pass
    gated.eval()


def _size_of(raw: Iterable[Tensor]) -> Tensor:
    """Return the mean over frames of the sum of all raw gates."""
    return torch.stack([gates.sum(dim=1).mean() for gates in raw]).sum()


def _finalise(context: PruningContext, trainee: Trainee, plan: MasterPlan) -> None:
    """Find the links of the trained layers, and set the layers to what they say."""
    network, layers = trainee.gated.network, trainee.layers
    if plan.link_mode == "reparam":
        trainee.links = knowledge.fix_mixtures(network, layers)
    elif trainee.penalty is not None:
        before = grade(_calibrated(context, trainee.gated), context.data, context.data.val)
        trainee.links = trainee.penalty.links()
        knowledge.finalise(network, trainee.links)
        after = grade(_calibrated(context, trainee.gated), context.data, context.data.val)
        logger.info("Replacing the layers by their mixtures: %.3f before, %.3f after", before, after)
    elif plan.link_mode == "mix_fixed":
        trainee.links = knowledge.fixed_links(network, layers, orthogonal=plan.orthogonal)
    else:
        trainee.links = knowledge.identity_links(network, layers)
    knowledge.finalise(network, trainee.links)


def _calibrated(context: PruningContext, gated: GatedNetwork) -> GatedNetwork:
    gated.ratio = 1.0
    restore_entries(gated.network, measure_statistics(gated, context.data.train.images, 1.0))
    return gated


def measure_statistics(gated: GatedNetwork, images: npt.NDArray[np.uint8], ratio: float) -> Weights:
    """Measure the statistics of every batch norm at a keep ratio; those of another ratio do not fit."""
    twin = copy.deepcopy(gated).eval()
    twin.ratio = ratio
    for norm in batch_norms(twin.network).values():
        norm.reset_running_stats()
    with normalise_by_batch(twin.network, keeps=True, momentum=None), torch.no_grad():
        for start in range(0, len(images), CALIBRATION_BATCH):
            twin(to_input(images[start : start + CALIBRATION_BATCH]).to(device_of(twin)))
    return copy_entries(twin.network, statistics_of(twin.network))


def statistics_of(model: nn.Module) -> list[str]:
    """Name the statistics of batch norms."""
    return [f"{name}.{own}" for name, norm in batch_norms(model).items() for own, _ in norm.named_buffers()]
