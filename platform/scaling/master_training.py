"""ElasticDNN's offline master DNN constructor (Section III-B 1).

It pre-trains the master and its domain knowledge.

The keep ratios fall stage by stage, and every ratio that is used later has separate batch-norm statistics.
"""

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
from driftlab.platform.networks.training.training_loop import TrainingSchedule, epochs, grade
from driftlab.platform.scaling.growing import PruningContext

logger = logging.getLogger(__name__)
CALIBRATION_BATCH = 256  # frames, in the order of the data set
DRAWN_RATIOS = 2  # per step, between the smallest ratio and 1
GATE_PENALTY = 1e-6  # weight of the sum of gates in the loss
LINK_PENALTY = 5e-4  # weight of the links in the loss, for `knowledge: penalty`
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class MasterPlan:
    """The settings of a master's training."""

    stages: tuple[float, ...]  # smallest keep ratio of each stage
    schedule: TrainingSchedule  # of each stage
    link_mode: LinkMode
    orthogonal: bool


@dataclass
class MasterInTraining:
    """A gated network and its links to the domain knowledge, complete after training."""

    gated: GatedNetwork
    layers: list[str]  # layers with knowledge
    penalty: LinkPenalty | None = None
    links: dict[str, LayerLink] = field(default_factory=dict)


def train_master(context: PruningContext, sites: Sequence[GateSite], plan: MasterPlan) -> MasterInTraining:
    """Train a gated copy of the network stage by stage.

    Its layers then equal the mixtures of their knowledge.
    """
    network = copy.deepcopy(context.model)
    layers = knowledge.layers_with_knowledge(network, head_of(network, context.data.example(network)))
    gated = GatedNetwork(network, sites).to(device_of(network)).eval()
    master = MasterInTraining(gated, layers)
    if plan.link_mode == "reparam":
        knowledge.parametrise(network, layers)
    elif plan.link_mode == "penalty":
        master.penalty = LinkPenalty(network, layers)
    for stage, floor in enumerate(plan.stages):
        _train_stage(context, master, plan, stage, floor)
    _finalise(context, master, plan)
    return master


def _train_stage(context: PruningContext, master: MasterInTraining, plan: MasterPlan, stage: int, floor: float) -> None:
    """Train one stage on the same frames with several ratios in each step.

    A step uses the largest ratio, the smallest and some between.
    """
    gated, penalty, rng = master.gated, master.penalty, context.rng("master", stage)
    learner = gated if penalty is None else nn.ModuleList([gated, penalty])
    decayed = [value for name, value in gated.network.named_parameters() if not name.endswith(".offset")]

    def learn(rows: Rows) -> None:
        images = to_input(context.data.train.images[rows]).to(device_of(gated))
        # First loss: that of the task, for learning and remodelling ability, with a penalty on the gates.
        ratios = (1.0, *rng.uniform(floor, 1.0, DRAWN_RATIOS).tolist(), floor)
        for ratio in ratios:
            gated.ratio = ratio
            outputs, raw = gated.run(images)
            loss = context.data.task.loss(outputs, context.data.train.labels[rows])
            if loss is not None:
                torch.autograd.backward((loss + GATE_PENALTY * _mean_gates(raw.values())) / len(ratios))
        # Second loss: the distance between layers and mixtures of their knowledge; the other modes have none.
        if penalty is not None:
            torch.autograd.backward(LINK_PENALTY * penalty.loss(gated.network))
        for value in decayed:  # gates and mixings have no weight decay
            if value.grad is not None:
                value.grad.add_(value.detach(), alpha=plan.schedule.weight_decay)

    schedule = TrainingSchedule(
        plan.schedule.epochs, plan.schedule.learning_rate, plan.schedule.batch, weight_decay=0.0
    )
    for _ in epochs(learner, context.data, schedule, context.rng("master", "order", stage), learn=learn):
        pass
    gated.eval()


def _mean_gates(raw: Iterable[Tensor]) -> Tensor:
    """Return the sum of all raw gates, averaged over frames."""
    return torch.stack([gates.sum(dim=1).mean() for gates in raw]).sum()


def _finalise(context: PruningContext, master: MasterInTraining, plan: MasterPlan) -> None:
    """Compute the links of the trained layers, and set the layers to their mixtures.

    The second loss becomes 0.
    """
    network, layers = master.gated.network, master.layers
    if plan.link_mode == "reparam":
        master.links = knowledge.fix_mixtures(network, layers)
    elif master.penalty is not None:
        before = grade(_calibrated(context, master.gated), context.data, context.data.val)
        master.links = master.penalty.links()
        knowledge.mix_layers(network, master.links)
        after = grade(_calibrated(context, master.gated), context.data, context.data.val)
        logger.info("Validation accuracy before replacing layers by their mixtures: %.3f, after: %.3f", before, after)
    elif plan.link_mode == "mix_fixed":
        master.links = knowledge.fixed_links(network, layers, orthogonal=plan.orthogonal)
    else:
        master.links = knowledge.identity_links(network, layers)
    knowledge.mix_layers(network, master.links)


def _calibrated(context: PruningContext, gated: GatedNetwork) -> GatedNetwork:
    gated.ratio = 1.0
    restore_entries(gated.network, measure_statistics(gated, context.data.train.images, 1.0))
    return gated


def measure_statistics(gated: GatedNetwork, images: npt.NDArray[np.uint8], ratio: float) -> Weights:
    """Measure the statistics of all batch norms at a keep ratio: they differ between ratios."""
    twin = copy.deepcopy(gated).eval()
    twin.ratio = ratio
    for norm in batch_norms(twin.network).values():
        norm.reset_running_stats()
    with normalise_by_batch(twin.network, keeps=True, momentum=None), torch.no_grad():
        for start in range(0, len(images), CALIBRATION_BATCH):
            twin(to_input(images[start : start + CALIBRATION_BATCH]).to(device_of(twin)))
    return copy_entries(twin.network, statistic_names(twin.network))


def statistic_names(model: nn.Module) -> list[str]:
    """Return the names of all batch-norm statistics."""
    return [f"{name}.{own}" for name, norm in batch_norms(model).items() for own, _ in norm.named_buffers()]
