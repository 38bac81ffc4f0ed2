"""Surrogate: a smaller network cut from a gated master for the hardest sample of a domain (ElasticDNN).

Building gates every group of channels that can be gated, trains the master at falling densities, measures the batch
norms anew for each keep ratio, and cuts a first surrogate of each for frames of the source. On the device a draft cuts
another one; what it learned flows back into the master layer by layer.

Differs from the paper: gates multiply batch norms instead of convolutions, statistics of batch norms are private to a
keep ratio, and layers equal the mixtures of their knowledge by construction instead of by a penalty.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Gt, Le

from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Weights
from driftlab.platform.scaling.base import Budget, Draft, Profile, Scaling, Size, check_index, most_accurate

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from torch import nn

    from driftlab.platform.networks.tasks.tasks import Task
    from driftlab.platform.networks.training.training_loop import Data
    from driftlab.platform.scaling.elastic import Master
    from driftlab.platform.scaling.growing import PruningContext
    from driftlab.platform.scaling.master_training import MasterPlan

SOURCE_SAMPLES = 100  # of the source, for the first surrogates and as many as a domain gives


@dataclass(frozen=True)
class Surrogate(Scaling):
    """Cut a network for the samples of each domain from a gated master, and feed back what it learns."""

    keep: Annotated[
        tuple[float, ...], Gt(0), Le(1), Means("share of each gated group that a network keeps, falling")
    ] = (0.3,)
    sample: Annotated[
        Literal["hardest", "first", "mean"], Means("whose gates decide: of the least certain frame, the first, or all")
    ] = "hardest"
    filters: Annotated[Literal["relevant", "random"], Means("whether gates or chance choose the kept channels")] = (
        "relevant"
    )
    knowledge: Annotated[
        Literal["identity", "mix_fixed", "reparam", "penalty"], Means("how layers are linked to their knowledge")
    ] = "identity"
    mixing: Annotated[Literal["orthogonal", "softmax"], Means("the matrices of knowledge mix_fixed")] = "orthogonal"
    absorb_alpha: Annotated[float, Ge(0), Le(1), Means("share of a filter's change that flows back")] = 1.0
    bn_alpha: Annotated[float, Ge(0), Le(1), Means("share of a batch norm's change that flows back")] = 0.2
    bottleneck: Annotated[int, Ge(1), Means("factor by which a gate's hidden layer is narrower")] = 16
    min_keep: Annotated[int, Ge(1), Means("channels of each group that always stay")] = 2
    stages: Annotated[
        tuple[float, ...], Gt(0), Le(1), Means("smallest keep ratio of each stage of training, falling")
    ] = (
        0.8,
        0.5,
        0.2,
    )
    epochs: Annotated[int, Ge(0), Means("passes over the data per stage", "epochs")] = 4
    learning_rate: Annotated[float, Gt(0), Le(10), Means("step size at the beginning of a stage")] = 0.02
    batch: Annotated[int, Ge(2), Means("frames of a step", "frames")] = 32
    gate_penalty: Annotated[float, Ge(0), Le(1), Means("weight of the sum of gates in the loss")] = 1e-6
    link_penalty: Annotated[float, Ge(0), Le(1), Means("weight of the links in the loss, with knowledge penalty")] = (
        5e-4
    )

    needs_data = True
    nested = False
    drafts = True

    def faults(self) -> list[str]:
        """Name lists of ratios that do not fall."""
        lists = {"keep": self.keep, "stages": self.stages}
        return [
            f"'{name}' is {given}, must be one or more shares that fall"
            for name, given in lists.items()
            if not given or any(later >= earlier for earlier, later in itertools.pairwise(given))
        ]

    def build(self, model: nn.Module, data: Data | None) -> Master:
        from driftlab.platform.networks.pruning.surgery import groups
        from driftlab.platform.networks.training.training_loop import deterministic
        from driftlab.platform.scaling.growing import PruningContext

        assert data is not None
        with deterministic(data.seed):
            return self._build(PruningContext(model, groups(model, data.example(model)), data))

    def _build(self, context: PruningContext) -> Master:
        from driftlab.platform.networks.pruning.gating import find_sites
        from driftlab.platform.scaling import elastic
        from driftlab.platform.scaling.master_training import train_master

        data = context.data
        sites, others = find_sites(context.model, context.groups, data.example(context.model))
        elastic.refuse_ungated(context.model, sites, others)
        trainee = train_master(context, sites, self._plan)
        master = elastic.first_master(trainee, context, self.keep)
        images = data.train.images[:SOURCE_SAMPLES]
        for which in range(len(master)):
            draft = self.draft(master, Budget(variant=which), images, data.task)
            master = self.redraft(master, Budget(variant=which), draft)
        return elastic.measure_accuracies(master, data)

    @property
    def _plan(self) -> MasterPlan:
        from driftlab.platform.networks.training.training_loop import Course
        from driftlab.platform.scaling.master_training import MasterPlan

        course = Course(self.epochs, self.learning_rate, self.batch)
        link = self.knowledge, self.mixing == "orthogonal", self.link_penalty
        return MasterPlan(self.stages, course, self.gate_penalty, *link, self.bottleneck, self.min_keep)

    def select(self, family: Master, budget: Budget) -> nn.Module:
        """Return the current network of the chosen keep ratio; without a choice the most accurate that fits."""
        from driftlab.platform.scaling.elastic import surrogate_of

        return surrogate_of(family, self._chosen(family, budget))

    def draft(self, family: Master, budget: Budget, images: npt.NDArray[np.uint8], task: Task) -> Draft:
        from driftlab.platform.scaling.elastic import draft_for

        return draft_for(family, self._chosen(family, budget), images, task, (self.sample, self.filters))

    def redraft(self, family: Master, budget: Budget, draft: Draft) -> Master:
        from driftlab.platform.scaling.elastic import cut_by

        return cut_by(family, self._chosen(family, budget), draft)

    def absorb(self, family: Master, variant: nn.Module) -> Master:
        from driftlab.platform.scaling.elastic import feed_back

        return feed_back(family, variant, self.absorb_alpha, self.bn_alpha)

    def profile(self, family: Master, size: Size) -> tuple[Profile, ...]:
        from driftlab.platform.networks.cost_counter import count_cost
        from driftlab.platform.scaling.elastic import surrogate_of

        found = []
        for which, ratio in enumerate(family.ratios):
            cost = count_cost(surrogate_of(family, which), *size)
            accuracies = family.val_accuracies[which], family.test_accuracies[which]
            found.append(Profile(f"keep {ratio:g}", accuracies[0], cost.weight_bytes, cost, accuracies[1]))
        return tuple(found)

    def store(self, family: Master) -> Weights:
        from driftlab.platform.scaling.elastic import store

        return store(family)

    def restore(self, model: nn.Module, arrays: Weights, size: Size) -> Master:
        from driftlab.platform.scaling.elastic import restore

        return restore(model, arrays, size, self.bottleneck, self.min_keep)

    def _chosen(self, family: Master, budget: Budget) -> int:
        if budget.variant is not None:
            return check_index(budget.variant, len(family))
        limit = budget.memory_bytes
        good = [which for which in range(len(family)) if limit is None or family.memory_bytes(which) <= limit]
        return most_accurate(family.val_accuracies, good)
