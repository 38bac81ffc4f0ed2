"""AdaScale's multi-branch supernet (Section III).

A stage has an exit and several operators, and every path is a network.

All paths share one set of weights: stages and exits are trained stage by stage (Algorithm 1), operators are distilled
from their stage. `Branches` never switches: it runs the full network or a fixed exit. Other members build the same
supernet and select among its paths.

Differs from the paper: operators replace the blocks of a network that is already trained; each stage keeps its best
epoch; stages have equally many blocks unless `placement` is `probed`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le

from driftlab.errors import RequestError
from driftlab.platform.core.parameters import BEFORE, CHOOSING, Means
from driftlab.platform.core.records import Variant, Weights
from driftlab.platform.networks.paths import LEAVING, MERGED, SPARSE, Operators, Path, PathCatalogue, PathSpace
from driftlab.platform.networks.spaces import SPACES, find_space, stages_faults
from driftlab.platform.scaling.base import (
    CHOOSER,
    PREDICTOR,
    Budget,
    Chooser,
    Profile,
    Scaling,
    Size,
    check_index,
    fit_memory,
    most_accurate,
    width_of,
)
from driftlab.platform.scaling.predicting import Predictor

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from torch import nn

    from driftlab.platform.networks.branched import Branched
    from driftlab.platform.networks.chain import Block, Chain
    from driftlab.platform.networks.training.training_loop import DataSplits
    from driftlab.platform.scaling.probing import StagePlan

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class PathFamily:
    """A supernet with the accuracies of all its paths, by number."""

    branched: Branched
    val_accuracies: tuple[float, ...]
    test_accuracies: tuple[float, ...]
    plan: StagePlan | None = None  # of the stages; None: equally many blocks each
    thresholds: tuple[float, ...] = ()  # of confidence exits
    leaving: npt.NDArray[np.float64] | None = None  # share of validation frames per exit, by path and threshold

    @property
    def catalogue(self) -> PathCatalogue:
        """Return the numbers of all networks."""
        return PathCatalogue(self.branched.space, self.thresholds)

    def __len__(self) -> int:
        return len(self.catalogue)


def _operators(space: PathSpace, path: Path) -> dict[str, str]:
    """Return the operator of each stage of a path, by the prefix of its layers."""
    return {f"stages.{stage}.": name for stage, name in enumerate(space.name(path).split("."))}


@dataclass(frozen=True)
class PathScaling(Scaling):
    """Base of members that select among the paths of a supernet."""

    space: Annotated[
        str,
        Means("operators per stage, by name or in a YAML file; tiny has 120 paths to four exits", names=tuple(SPACES)),
    ] = "tiny"
    exits: Annotated[int, Ge(1), Le(4), Means("stages, each with an exit; at most one per block")] = 4
    placement: Annotated[
        Literal["even", "probed"],
        Means("even: equally many blocks per stage; probed: exits where accuracy rises most per operation"),
    ] = field(default="even", metadata={BEFORE: "even"})
    probe_epochs: Annotated[int, Ge(0), Means("epochs per probe", "epochs")] = field(default=5, metadata={BEFORE: 5})
    training: Annotated[
        Literal["freeze", "conditional"],
        Means("Algorithm 1: freeze earlier stages (a), or update the one before if its exit gains (b)"),
    ] = field(default="freeze", metadata={BEFORE: "freeze"})
    stage_epochs: Annotated[int, Ge(0), Means("epochs per stage, at most where it has a goal", "epochs")] = 8
    stage_goals: Annotated[
        tuple[float, ...],
        Ge(0),
        Le(1),
        Means("Acc_i of Algorithm 1: accuracies at which stages stop training, the last for all later", "fraction"),
    ] = field(default=(), metadata={BEFORE: ()})
    learning_rate: Annotated[float, Gt(0), Le(10), Means("initial learning rate of stages")] = 0.05
    operator_epochs: Annotated[int, Ge(0), Means("epochs per operator", "epochs")] = 3
    path_epochs: Annotated[int, Ge(0), Means("epochs of training along random paths", "epochs")] = 2
    batch: Annotated[int, Ge(2), Means("batch size", "frames")] = 32
    confidence: Annotated[
        tuple[float, ...],
        Gt(0),
        Le(1),
        Means("confidence from which a frame leaves a path at an earlier exit, one more network per path and value"),
    ] = field(default=(), metadata={BEFORE: ()})
    chooser: Annotated[Chooser, CHOOSER] = field(default="own", metadata={CHOOSING: True, BEFORE: "own"})
    predictor: Annotated[Predictor, PREDICTOR] = field(default="law", metadata={CHOOSING: True, BEFORE: "law"})

    version = 2
    needs_data = True
    nested = False
    built_as: ClassVar[str] = "branches"

    def faults(self) -> list[str]:
        """Return the faults of the space and of the confidence thresholds."""
        faults, repeated = stages_faults(self.space, "exits", self.exits), len(set(self.confidence))
        if repeated < len(self.confidence):
            faults.append(f"'confidence' is {self.confidence}, its values must differ")
        if self.confidence and self.exits < 2:
            faults.append("'confidence' needs an earlier exit; set exits: 2 or more")
        return faults

    def build(self, model: nn.Module, data: DataSplits | None) -> PathFamily:
        from driftlab.platform.networks.training.training_loop import TrainingSchedule, deterministic
        from driftlab.platform.scaling import staged
        from driftlab.platform.scaling.conditional import train_conditionally

        assert data is not None
        with deterministic(data.seed):
            # Branch diversity establishment: where exits and operators are.
            plan = self._plan(model, data) if self.placement == "probed" else None
            branched = branch_model(model, data.size, find_space(self.space), self.exits, plan)
            # Algorithm 1 (a) or (b), then the operators.
            stage = TrainingSchedule(self.stage_epochs, self.learning_rate, self.batch)
            schedule = staged.StagedSchedule(stage, self.operator_epochs, self.path_epochs)
            train = train_conditionally if self.training == "conditional" else staged.train_stages
            train(branched, data, stage, self.stage_goals)
            staged.train_operators(branched, data, schedule)
            staged.train_paths(branched, data, schedule)
            # Performance index table: the accuracy of every path.
            val, test = (staged.grade_paths(branched, data, split) for split in (data.val, data.test))
            family = PathFamily(branched, val, test, plan)
            if self.confidence:
                family = self._with_confidence(family, data)
        logger.info("Measured %d paths: %.3f to %.3f", len(family), min(val), max(val))
        return family

    def _with_confidence(self, family: PathFamily, data: DataSplits) -> PathFamily:
        """Measure the paths that confident frames leave at earlier exits."""
        from driftlab.platform.scaling.leaving import grade_leaving

        catalogue = PathCatalogue(family.branched.space, self.confidence)
        val, test = (grade_leaving(family.branched, catalogue, data, split) for split in (data.val, data.test))
        return replace(
            family,
            val_accuracies=(*family.val_accuracies, *val.scores),
            test_accuracies=(*family.test_accuracies, *test.scores),
            thresholds=self.confidence,
            leaving=val.leaving,
        )

    def _plan(self, model: nn.Module, data: DataSplits) -> StagePlan:
        """Plan the stages by probing every block."""
        from driftlab.platform.networks.chain import chain_of
        from driftlab.platform.networks.training.training_loop import TrainingSchedule
        from driftlab.platform.scaling.probing import plan_stages

        chain = chain_of(model, data.example(model), self.exits)
        return plan_stages(chain, data, self.exits, TrainingSchedule(self.probe_epochs, self.learning_rate, self.batch))

    def select(self, family: PathFamily, budget: Budget) -> nn.Module:
        """Return the network of the budget's path, or else of the most accurate path."""
        if budget.variant is None:
            which = most_accurate(family.val_accuracies)
        else:
            which = check_index(budget.variant, len(family))
        path, threshold = family.catalogue.decode(which)
        if threshold is None:
            return family.branched.network(path)
        from driftlab.platform.networks.leaving import leaving_network

        return leaving_network(family.branched, path, threshold)

    def absorb(self, family: PathFamily, variant: nn.Module) -> PathFamily:
        from driftlab.platform.networks.branched import PathNetwork
        from driftlab.platform.networks.early_exit import EarlyExitNetwork
        from driftlab.platform.networks.leaving import replaced_by

        if isinstance(variant, EarlyExitNetwork) and variant.path is not None:
            return replace(family, branched=replaced_by(family.branched, variant))
        if not isinstance(variant, PathNetwork):
            raise RequestError(f"This {type(variant).__name__} is none of the family's {len(family)} networks.")
        return replace(family, branched=family.branched.replaced(variant))

    def profile(self, family: PathFamily, size: Size) -> tuple[Profile, ...]:
        from driftlab.platform.networks.branched import count_modules, module_bytes, sum_paths
        from driftlab.platform.networks.leaving import leaving_cost, used_modules

        branched, catalogue, fixed = family.branched, family.catalogue, len(family.branched.space)
        sizes, counted = module_bytes(branched), count_modules(branched, *size)
        costs, used = sum_paths(branched, counted), list[list[str]]()
        for which in range(len(family)):
            path, _ = catalogue.decode(which)
            if which < fixed:
                used.append([name for name, _ in branched.used(path)])
            else:
                assert family.leaving is not None, "it was measured with its thresholds"
                used.append(used_modules(branched, path))
                costs.append(leaving_cost(branched, counted, path, family.leaving[which - fixed]))
        accuracies = zip(family.val_accuracies, family.test_accuracies, strict=True)
        return tuple(
            Profile(
                catalogue.name(which), val, costs[which].weight_bytes, costs[which], test,
                tuple((name, sizes[name]) for name in used[which]),
                _operators(branched.space, catalogue.decode(which)[0]),
            )
            for which, (val, test) in enumerate(accuracies)
        )  # fmt: skip

    def store(self, family: PathFamily) -> Weights:
        import numpy as np

        from driftlab.platform.networks.predict import state_of

        return {
            "accuracies": np.array(family.val_accuracies),
            "judged": np.array(family.test_accuracies),
            **({"plan": np.array([family.plan.ends, family.plan.critical])} if family.plan else {}),
            **({} if family.leaving is None else {"leaving": family.leaving}),
            **{
                f"{part}/{name}": array
                for part, module in family.branched.parts()
                for name, array in state_of(module).items()
            },
        }

    def restore(self, model: nn.Module, arrays: Weights, size: Size) -> PathFamily:
        from driftlab.platform.networks.predict import load
        from driftlab.platform.networks.training.training_loop import deterministic
        from driftlab.platform.scaling.probing import StagePlan

        plan = None
        if "plan" in arrays:
            ends, critical = arrays["plan"].tolist()
            plan = StagePlan(tuple(ends), tuple(map(bool, critical)))
        with deterministic(0):  # the random weights are replaced
            branched = branch_model(model, size, find_space(self.space), self.exits, plan)
        for part, module in branched.parts():
            load(module, {key.partition("/")[2]: array for key, array in arrays.items() if key.startswith(f"{part}/")})
        val, test = (tuple(arrays[name].tolist()) for name in ("accuracies", "judged"))
        return PathFamily(branched, val, test, plan, self.confidence, arrays.get("leaving"))


def branch_model(
    model: nn.Module, size: Size, operators: Operators, exits: int, plan: StagePlan | None = None
) -> Branched:
    """Return a network as a supernet with operators and exits, on the network's device.

    It has at most `exits` stages, or those of a plan. It is put together on the CPU, whose generator draws new weights.
    """
    import torch

    from driftlab.platform.networks.branched import branch
    from driftlab.platform.networks.chain import chain_of
    from driftlab.platform.networks.module_utils import copy_model
    from driftlab.platform.networks.predict import device_of

    device = device_of(model)
    plain = model if device == "cpu" else copy_model(model).to("cpu")
    chain = chain_of(plain, torch.zeros(1, 3, *size), plan.ends if plan else exits)
    operators = operators[: len(chain.stages)]
    branched = branch(chain, PathSpace(plan.operators(operators) if plan else operators), make_stage)
    for _, part in branched.parts():
        part.to(device)
    return branched


def make_stage(chain: Chain, which: int, name: str | None) -> nn.Module:
    """Return a stage with an operator; None: unchanged.

    The stage may also be pruned (LegoDNN) or merged into one block (AdaptiveNet).

    A merged stage keeps its first block, which changes channels and resolution, if that has the output shape of all.
    """
    from torch import nn

    blocks = chain.stages[which]
    if name == MERGED:
        fits = (blocks[0].outputs, blocks[0].after) == (blocks[-1].outputs, blocks[-1].after)
        return nn.Sequential(blocks[0].base()) if fits else chain.stage(which, None)
    if name in SPARSE:
        return nn.Sequential(*(pruned_block(block, 1 - SPARSE[name]) for block in blocks))
    return chain.stage(which, name)


def pruned_block(block: Block, share: float) -> nn.Module:
    """Return a copy of a block with a share of its inner filters, ranked by L1 norm.

    A block without inner filters stays unchanged.

    Filters that other blocks read stay, so that a pruned block has the same output channels.
    """
    import numpy as np
    import torch

    from driftlab.platform.networks.pruning.ranking import rank
    from driftlab.platform.networks.pruning.surgery import cut, groups
    from driftlab.platform.scaling.growing import best_channels

    base = block.base().eval()
    with torch.no_grad():
        inner = groups(base, torch.zeros(1, block.inputs, *block.before))
    if not inner.sizes:
        return base
    unused = np.zeros(0, np.uint8)
    scores = rank(base, inner, "l1", images=unused, labels=unused, rng=np.random.default_rng(0))
    kept = {
        name: best_channels(torch.arange(size), scores[name], width_of(size, share))
        for name, size in inner.sizes.items()
    }
    return cut(base, inner, kept)


def exit_of(variant: Variant) -> int:
    """Return the last exit of a path, from 1 on, by its name."""
    return variant.name.partition(LEAVING)[0].count(".") + 1


def full_depth(variants: Sequence[Variant]) -> list[int]:
    """Return the numbers of the paths that all frames run to the last exit, for methods without exits."""
    last = max(map(exit_of, variants))
    return [which for which, one in enumerate(variants) if exit_of(one) == last and LEAVING not in one.name]


def deep_paths(variants: Sequence[Variant]) -> tuple[dict[tuple[str, ...], int], list[list[str]]]:
    """Return the paths to the last exit, each by its operators, and the operators of each stage."""
    paths = {tuple(variants[which].name.split(".")): which for which in full_depth(variants)}
    return paths, [list(dict.fromkeys(names)) for names in zip(*paths, strict=True)]


def fitting_paths(variants: Sequence[Variant], budget: Budget) -> dict[tuple[str, ...], int]:
    """Return the paths to the last exit that fit in the free memory, by operators.

    If none fits, the smallest is returned.
    """
    paths, _ = deep_paths(variants)
    fitting = set(fit_memory(variants, paths.values(), budget))
    return {path: which for path, which in paths.items() if which in fitting}


def fitting_among(variants: Sequence[Variant], candidates: Sequence[int], budget: Budget) -> list[int]:
    """Return the candidates that fit in the free memory; if none fits, the smallest path to the last exit."""
    fitting = fit_memory(variants, full_depth(variants), budget)
    smallest = min(fitting, key=lambda which: (variants[which].memory_bytes, which))
    return [which for which in candidates if which in fitting] or [smallest]


@dataclass(frozen=True)
class Branches(PathScaling):
    """Static supernet: run the full network, or a fixed early exit."""

    exit: Annotated[int | None, Ge(1), Le(4), Means("the exit that is used for all frames; none: the last one")] = (
        field(default=None, metadata={CHOOSING: True})
    )

    def select_within(self, variants: Sequence[Variant], budget: Budget, state: Any) -> tuple[int, Any]:
        """Return the path without operators to the exit; the budget is ignored."""
        last = exit_of(variants[-1])
        wanted = min(self.exit or last, last)
        whole = [which for which, one in enumerate(variants) if exit_of(one) == wanted and LEAVING not in one.name]
        return max(whole), state
