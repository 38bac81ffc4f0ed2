"""ElasticDNN's networks: surrogates cut from a gated master (Section III-B).

A surrogate is cut for the most difficult sample of a domain.

Building pre-trains the master at falling keep ratios (`master_training.py`) and cuts one surrogate per ratio for frames
of the source. On the device a channel mask is selected for a target domain, and the changes of a trained surrogate
update the master through its domain knowledge (Eq. 3 and 4, `elastic.py`). The accuracy estimator (Eq. 5-7) is
`adaptation/estimating.py`, the scheduler (Eq. 8-11) `scheduling/elasticdnn.py`.

Differs from the paper: gates multiply batch norms instead of convolutions, batch-norm statistics are separate for each
keep ratio, and layers equal the mixtures of their knowledge by construction instead of by a penalty.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Gt, Le

from driftlab.platform.core.parameters import BEFORE, Means
from driftlab.platform.core.records import Weights
from driftlab.platform.scaling.base import Budget, ChannelMask, Profile, Scaling, Size, check_index, most_accurate

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from torch import nn

    from driftlab.platform.networks.tasks.tasks import Task
    from driftlab.platform.networks.training.training_loop import DataSplits
    from driftlab.platform.scaling.elastic import Master

# Shifts that no experiment with surrogates tests on and no estimator is fitted on.
SOURCES = ("glass_blur", "snow", "brightness", "elastic_transform", "jpeg_compression")
SOURCE_SAMPLES = 100  # frames for the first surrogates: as many as a target domain provides


@dataclass(frozen=True)
class Surrogate(Scaling):
    """ElasticDNN (TC 2024): cut a surrogate from a gated master per domain, feed trained filters back."""

    keep_ratios: Annotated[
        tuple[float, ...], Gt(0), Le(1), Means("keep ratios of the gated groups, one per network, falling")
    ] = (0.3,)
    sample: Annotated[
        Literal["hardest", "first", "mean"],
        Means("frame whose gates decide: highest entropy, the first, or the mean over all"),
    ] = "hardest"
    filters: Annotated[
        Literal["relevant", "random", "l1"], Means("kept channels: by gates, at random, or by the L1 norm of weights")
    ] = "relevant"
    recut: Annotated[bool, Means("whether channels are selected for each domain, or once on the source")] = True
    gates: Annotated[
        Literal["input", "domain", "static", "frozen", "random"],
        Means(
            "input: two layers, as in FBS; domain: one on standardised inputs; controls: static constants that learn, "
            "frozen layers that do not, random constants"
        ),
    ] = "input"
    ungated: Annotated[int, Ge(0), Means("first groups of channels without gates, which keep all channels")] = 0
    sources: Annotated[
        tuple[str, ...],
        Means("shifts at severity 5 on which the master is also trained, besides the frames as they are"),
    ] = SOURCES
    knowledge: Annotated[
        Literal["identity", "mix_fixed", "reparam", "penalty"], Means("link between layers and their domain knowledge")
    ] = "identity"
    mixing: Annotated[Literal["orthogonal", "softmax"], Means("mixing matrices of knowledge mix_fixed")] = "orthogonal"
    absorb_alpha: Annotated[float, Ge(0), Le(1), Means("share of a filter's change that updates the master")] = 1.0
    bn_alpha: Annotated[float, Ge(0), Le(1), Means("share of a batch norm's change that updates the master")] = 0.2
    bn_scope: Annotated[
        Literal["all", "gated", "trained"],
        Means("channels of batch norms that update the master: all, those behind gates, or those that were trained"),
    ] = field(default="all", metadata={BEFORE: "all"})
    stages: Annotated[tuple[float, ...], Gt(0), Le(1), Means("smallest keep ratio of each training stage, falling")] = (
        0.8,
        0.5,
        0.2,
    )
    epochs: Annotated[int, Ge(0), Means("epochs per stage", "epochs")] = 4
    learning_rate: Annotated[float, Gt(0), Le(10), Means("initial learning rate of a stage")] = 0.02
    batch: Annotated[int, Ge(2), Means("batch size", "frames")] = 32

    needs_data = True
    nested = False

    @property
    def cuts_per_domain(self) -> bool:
        return True

    def faults(self) -> list[str]:
        """Return a fault for each list of ratios that does not fall."""
        from driftlab.datasets.domains.names import unfit_for_training

        lists = {"keep_ratios": self.keep_ratios, "stages": self.stages}
        unfit = unfit_for_training(self.sources)
        return [f"'sources' has '{shift}', which is no shift of single frames" for shift in unfit] + [
            f"'{name}' is {ratios}, must be one or more shares that fall"
            for name, ratios in lists.items()
            if not ratios or any(later >= earlier for earlier, later in itertools.pairwise(ratios))
        ]

    def build(self, model: nn.Module, data: DataSplits | None) -> Master:
        from driftlab.platform.networks.pruning.gating import find_sites
        from driftlab.platform.networks.pruning.surgery import groups
        from driftlab.platform.networks.training.training_loop import TrainingSchedule, deterministic
        from driftlab.platform.scaling import elastic
        from driftlab.platform.scaling.growing import PruningContext
        from driftlab.platform.scaling.master_training import MasterPlan, train_master

        assert data is not None
        with deterministic(data.seed):
            # Offline master DNN constructor: extend with FBS, pre-train master and domain knowledge.
            context = PruningContext(model, groups(model, data.example(model)), data)
            sites, others = find_sites(model, context.groups, data.example(model))
            elastic.refuse_ungated(model, sites[self.ungated :], others)
            schedule = TrainingSchedule(self.epochs, self.learning_rate, self.batch)
            link = self.knowledge, self.mixing == "orthogonal"
            plan = MasterPlan(self.stages, schedule, *link, self.gates, self.sources)
            trained = train_master(context, sites[self.ungated :], plan)
            master = elastic.first_master(trained, context, self.keep_ratios)
            # Surrogate generator: one surrogate per keep ratio for frames of the source.
            images = data.train.images[:SOURCE_SAMPLES]
            for which in range(len(master)):
                mask = self.select_channels(master, Budget(variant=which), images, data.task)
                master = self.apply_mask(master, Budget(variant=which), mask)
            return elastic.measure_accuracies(master, data)

    def select(self, family: Master, budget: Budget) -> nn.Module:
        """Return the surrogate of the budget's keep ratio, or else the most accurate that fits in memory."""
        from driftlab.platform.scaling.elastic import surrogate_of

        return surrogate_of(family, self._ratio_of(family, budget))

    def select_channels(self, family: Master, budget: Budget, images: npt.NDArray[np.uint8], task: Task) -> ChannelMask:
        from driftlab.platform.scaling.elastic import mask_for, mask_of

        which = self._ratio_of(family, budget)
        if not self.recut and family.cuts[which].kept:
            return mask_of(family, which)
        return mask_for(family, which, images, task, sample=self.sample, filters=self.filters)

    def apply_mask(self, family: Master, budget: Budget, mask: ChannelMask) -> Master:
        from driftlab.platform.scaling.elastic import cut_by

        return cut_by(family, self._ratio_of(family, budget), mask)

    def absorb(self, family: Master, variant: nn.Module) -> Master:
        from driftlab.platform.scaling.elastic import feed_back

        return feed_back(family, variant, self.absorb_alpha, self.bn_alpha, self.bn_scope)

    def profile(self, family: Master, size: Size) -> tuple[Profile, ...]:
        from driftlab.platform.networks.cost_counter import count_cost
        from driftlab.platform.scaling.elastic import surrogate_of

        profiles = []
        for which, ratio in enumerate(family.ratios):
            cost = count_cost(surrogate_of(family, which), *size)
            accuracies = family.val_accuracies[which], family.test_accuracies[which]
            profiles.append(Profile(f"keep {ratio:g}", accuracies[0], cost.weight_bytes, cost, accuracies[1]))
        return tuple(profiles)

    def store(self, family: Master) -> Weights:
        from driftlab.platform.scaling.elastic import store

        return store(family)

    def restore(self, model: nn.Module, arrays: Weights, size: Size) -> Master:
        from driftlab.platform.scaling.elastic import restore

        return restore(model, arrays, size, self.gates, self.ungated)

    def _ratio_of(self, family: Master, budget: Budget) -> int:
        if budget.variant is not None:
            return check_index(budget.variant, len(family))
        limit = budget.memory_bytes
        fitting = [which for which in range(len(family)) if limit is None or family.memory_bytes(which) <= limit]
        return most_accurate(family.val_accuracies, fitting)
