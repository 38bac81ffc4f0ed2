"""ElasticDNN's offline master DNN constructor (Section III-B 1).

It pre-trains the master and its domain knowledge.

The keep ratios fall stage by stage, and every ratio that is used later has separate batch-norm statistics. With several
source domains, a batch has some frames of each of several domains.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from driftlab.datasets.domains.orders import Domain
from driftlab.datasets.domains.shifts import shifted
from driftlab.platform.core.records import Weights
from driftlab.platform.networks.features import head_of
from driftlab.platform.networks.module_utils import batch_norms, copy_entries, normalise_by_batch, restore_entries
from driftlab.platform.networks.predict import device_of, to_input
from driftlab.platform.networks.pruning import knowledge
from driftlab.platform.networks.pruning.gating import GatedNetwork, GateKind, GateSite, keep_count
from driftlab.platform.networks.pruning.knowledge import LayerLink, LinkMode, LinkPenalty
from driftlab.platform.networks.training.training_loop import TrainingSchedule, epochs, grade
from driftlab.platform.scaling.growing import PruningContext

logger = logging.getLogger(__name__)
CALIBRATION_BATCH = 256  # frames, in the order of the data set
DRAWN_RATIOS = 2  # per step, between the smallest ratio and 1
GATE_PENALTY = 1e-6  # weight of the sum of gates in the loss
LINK_PENALTY = 5e-4  # weight of the links in the loss, for `knowledge: penalty`
INFORMATION_WEIGHT = 0.3  # of the mutual information of domain and kept channels in the loss, for gates of the domain
MEMBERSHIP_WIDTH = 0.3  # of the soft membership of kept channels, in standard deviations of a frame's gates
DOMAIN_FRAMES = 8  # successive frames of one source domain in a batch, at most a quarter of it
SEVERITY = 5  # of the shifts of source domains
Rows = npt.NDArray[np.int64]
Images = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class MasterPlan:
    """The settings of a master's training."""

    stages: tuple[float, ...]  # smallest keep ratio of each stage
    schedule: TrainingSchedule  # of each stage
    link_mode: LinkMode
    orthogonal: bool
    gates: GateKind = "input"
    sources: tuple[str, ...] = ()  # shifts of the source domains besides the frames as they are


@dataclass(frozen=True, eq=False)
class SourceDomains:
    """The training frames in each source domain; the first one is as the data set has them."""

    images: tuple[Images, ...]
    group: int = DOMAIN_FRAMES

    @property
    def frames(self) -> int:
        """Return the number of successive frames of one domain."""
        return self.group if len(self.images) > 1 else 1

    def batch(self, rows: Rows, rng: np.random.Generator) -> tuple[Images, Rows]:
        """Return frames of some rows, `frames` in a row of each domain, and their rows."""
        if len(self.images) == 1:
            return self.images[0][rows], rows
        groups = rows[: len(rows) // self.group * self.group].reshape(-1, self.group)
        domains = np.resize(rng.permutation(len(self.images)), len(groups))
        return self._joined(domains, groups), groups.ravel()

    def every(self) -> Images:
        """Return every frame once, the domains in turn."""
        if len(self.images) == 1:
            return self.images[0]
        count = len(self.images[0]) // self.group
        groups = np.arange(count * self.group).reshape(-1, self.group)
        return self._joined(np.arange(count) % len(self.images), groups)

    def _joined(self, domains: Rows, groups: Rows) -> Images:
        return np.concatenate([self.images[domain][rows] for domain, rows in zip(domains, groups, strict=True)])


@dataclass
class MasterInTraining:
    """A gated network and its links to the domain knowledge, complete after training."""

    gated: GatedNetwork
    layers: list[str]  # layers with knowledge
    domains: SourceDomains
    penalty: LinkPenalty | None = None
    links: dict[str, LayerLink] = field(default_factory=dict)


def train_master(context: PruningContext, sites: Sequence[GateSite], plan: MasterPlan) -> MasterInTraining:
    """Train a gated copy of the network stage by stage.

    Its layers then equal the mixtures of their knowledge.
    """
    network = copy.deepcopy(context.model)
    layers = knowledge.layers_with_knowledge(network, head_of(network, context.data.example(network)))
    gated = GatedNetwork(network, sites, kind=plan.gates).to(device_of(network)).eval()
    master = MasterInTraining(gated, layers, source_domains(context, plan))
    if plan.link_mode == "reparam":
        knowledge.parametrise(network, layers)
    elif plan.link_mode == "penalty":
        master.penalty = LinkPenalty(network, layers)
    for stage, floor in enumerate(plan.stages):
        _train_stage(context, master, plan, stage, floor)
    _finalise(context, master, plan)
    return master


def source_domains(context: PruningContext, plan: MasterPlan) -> SourceDomains:
    """Render the training frames in each source domain."""
    train, shifts = context.data.train, plan.sources
    images = (context.data.plain or train).images if shifts else train.images
    rendered = [images]
    for shift in shifts:
        rng = context.rng("source", shift)
        rendered.append(np.stack([shifted(image, Domain(shift, SEVERITY), rng) for image in images]))
    group = 2 ** (max(1, plan.schedule.batch // 4).bit_length() - 1)  # a part of CALIBRATION_BATCH too
    return SourceDomains(tuple(rendered), min(DOMAIN_FRAMES, group))


def _train_stage(context: PruningContext, master: MasterInTraining, plan: MasterPlan, stage: int, floor: float) -> None:
    """Train one stage on the same frames with several ratios in each step.

    A step uses the largest ratio, the smallest and some between.
    """
    gated, penalty, rng = master.gated, master.penalty, context.rng("master", stage)
    learner = gated if penalty is None else nn.ModuleList([gated, penalty])
    decayed = [value for name, value in gated.network.named_parameters() if not name.endswith(".offset")]

    def learn(rows: Rows) -> None:
        frames, rows = master.domains.batch(rows, rng)
        images = to_input(frames).to(device_of(gated))
        # First loss: that of the task, for learning and remodelling ability, with a penalty on the gates.
        ratios = (1.0, *rng.uniform(floor, 1.0, DRAWN_RATIOS).tolist(), floor)
        for ratio in ratios:
            gated.ratio = ratio
            outputs, raw = gated.run(images)
            loss = context.data.task.loss(outputs, context.data.train.labels[rows])
            if loss is not None:
                loss = loss + GATE_PENALTY * _mean_gates(raw.values())
                if plan.gates == "domain" and ratio == floor:  # once a step, in full
                    loss = loss - len(ratios) * INFORMATION_WEIGHT * information(gated, raw)
                torch.autograd.backward(loss / len(ratios))
        # Second loss: the distance between layers and mixtures of their knowledge; the other modes have none.
        if penalty is not None:
            torch.autograd.backward(LINK_PENALTY * penalty.loss(gated.network))
        for value in decayed:  # gates and mixings have no weight decay
            if value.grad is not None:
                value.grad.add_(value.detach(), alpha=plan.schedule.weight_decay)

    schedule = TrainingSchedule(
        plan.schedule.epochs, plan.schedule.learning_rate, plan.schedule.batch, weight_decay=0.0
    )
    gated.frames = master.domains.frames
    for _ in epochs(learner, context.data, schedule, context.rng("master", "order", stage), learn=learn):
        pass
    gated.eval()
    gated.frames = 1


def _mean_gates(raw: Iterable[Tensor]) -> Tensor:
    """Return the sum of all raw gates, averaged over frames."""
    return torch.stack([gates.sum(dim=1).mean() for gates in raw]).sum()


def information(gated: GatedNetwork, raw: Mapping[str, Tensor]) -> Tensor:
    """Return the mutual information of domain and kept channels, as a share of its maximum.

    It is largest where each domain clearly keeps or drops each channel, and each channel is kept in as many domains.
    """
    shares = []
    for site in gated.sites:
        gates = site.per_unit(raw[site.group][:: gated.frames])  # frames of a domain share their gates
        keep = keep_count(site.size, gated.ratio, gated.min_keep)
        if keep < site.size:
            member = _membership(gates, keep)
            most = _entropy(member.new_tensor(keep / site.size))
            shares.append((_entropy(member.mean(dim=0)).mean() - _entropy(member).mean()) / most)
    return torch.stack(shares).mean() if shares else next(iter(raw.values())).new_zeros(())


def _membership(gates: Tensor, keep: int) -> Tensor:
    """Return the soft membership of each channel: a sigmoid about the smallest kept gate."""
    ranked = gates.detach().sort(dim=1, descending=True).values
    middle = (ranked[:, keep - 1] + ranked[:, keep]) / 2
    width = MEMBERSHIP_WIDTH * gates.detach().std(dim=1, keepdim=True).clamp_min(1e-3)
    return torch.sigmoid((gates - middle[:, None]) / width)


def _entropy(share: Tensor) -> Tensor:
    """Return the entropy of a probability."""
    share = share.clamp(1e-5, 1 - 1e-5)
    return -(share * share.log() + (1 - share) * (1 - share).log())


def _finalise(context: PruningContext, master: MasterInTraining, plan: MasterPlan) -> None:
    """Compute the links of the trained layers, and set the layers to their mixtures.

    The second loss becomes 0.
    """
    network, layers = master.gated.network, master.layers
    if plan.link_mode == "reparam":
        master.links = knowledge.fix_mixtures(network, layers)
    elif master.penalty is not None:
        before = grade(_calibrated(master), context.data, context.data.val)
        master.links = master.penalty.links()
        knowledge.mix_layers(network, master.links)
        after = grade(_calibrated(master), context.data, context.data.val)
        logger.info("Validation accuracy before replacing layers by their mixtures: %.3f, after: %.3f", before, after)
    elif plan.link_mode == "mix_fixed":
        master.links = knowledge.fixed_links(network, layers, orthogonal=plan.orthogonal)
    else:
        master.links = knowledge.identity_links(network, layers)
    knowledge.mix_layers(network, master.links)


def _calibrated(master: MasterInTraining) -> GatedNetwork:
    master.gated.ratio = 1.0
    restore_entries(master.gated.network, measure_statistics(master, 1.0))
    return master.gated


def measure_statistics(master: MasterInTraining, ratio: float) -> Weights:
    """Measure the statistics of all batch norms at a keep ratio: they differ between ratios."""
    twin, images = copy.deepcopy(master.gated).eval(), master.domains.every()
    twin.ratio, twin.frames = ratio, master.domains.frames
    for norm in batch_norms(twin.network).values():
        norm.reset_running_stats()
    with normalise_by_batch(twin.network, keeps=True, momentum=None), torch.no_grad():
        for start in range(0, len(images), CALIBRATION_BATCH):
            twin(to_input(images[start : start + CALIBRATION_BATCH]).to(device_of(twin)))
    return copy_entries(twin.network, statistic_names(twin.network))


def statistic_names(model: nn.Module) -> list[str]:
    """Return the names of all batch-norm statistics."""
    return [f"{name}.{own}" for name, norm in batch_norms(model).items() for own, _ in norm.named_buffers()]
