"""Branches: a network with an exit behind each stage and several operators in each; every path is a network.

One set of weights holds all paths: stages without operators and exits are trained stage by stage, operators learn to
compute what their stage computes. The member itself never switches: it runs the whole network, or always one exit.
Other members build the same networks and choose among them.

Differs from the paper: its operators replace a network's own blocks, which are trained already; each stage keeps its
best epoch; blocks are shared out evenly over the stages unless `placement` is `probed`.
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
from driftlab.platform.networks.paths import SPACES, Operators, PathSpace
from driftlab.platform.scaling.base import Budget, Profile, Scaling, Size, check_index, held_in_memory, most_accurate

if TYPE_CHECKING:
    from torch import nn

    from driftlab.platform.networks.branched import Branched
    from driftlab.platform.networks.training.training_loop import Data
    from driftlab.platform.scaling.probing import StagePlan

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class PathFamily:
    """All paths of a branched network, with their accuracies by number."""

    branched: Branched
    val_accuracies: tuple[float, ...]
    test_accuracies: tuple[float, ...]
    plan: StagePlan | None = None  # of its stages; None: they have equally many blocks

    def __len__(self) -> int:
        return len(self.branched.space)


@dataclass(frozen=True)
class OfPaths(Scaling):
    """Base of members that choose among the paths of a branched network."""

    space: Annotated[
        Literal["tiny", "small", "paper480", "lego", "supernet"],
        Means("operators of each stage: 120, 340 or 480 paths with four exits; lego prunes, supernet merges blocks"),
    ] = "tiny"
    exits: Annotated[int, Ge(1), Le(4), Means("stages, each with an exit, if there are blocks for so many")] = 4
    placement: Annotated[
        Literal["even", "probed"],
        Means("whether stages have equally many blocks, or exits go where accuracy is gained"),
    ] = field(default="even", metadata={BEFORE: "even"})
    probe_epochs: Annotated[int, Ge(0), Means("passes over the data for each probe", "epochs")] = field(
        default=5, metadata={BEFORE: 5}
    )
    training: Annotated[
        Literal["freeze", "conditional"], Means("whether a stage stays, or goes on learning while its exit gains")
    ] = field(default="freeze", metadata={BEFORE: "freeze"})
    stage_epochs: Annotated[int, Ge(0), Means("passes over the data for each stage", "epochs")] = 8
    learning_rate: Annotated[float, Gt(0), Le(10), Means("step size of stages at the beginning")] = 0.05
    operator_epochs: Annotated[int, Ge(0), Means("passes over the data for each operator", "epochs")] = 3
    path_epochs: Annotated[int, Ge(0), Means("passes over the data along random paths", "epochs")] = 2
    batch: Annotated[int, Ge(2), Means("frames of a step", "frames")] = 32

    version = 2
    needs_data = True
    nested = False
    built_as: ClassVar[str] = "branches"

    def build(self, model: nn.Module, data: Data | None) -> PathFamily:
        from driftlab.platform.networks.training.training_loop import Course, deterministic
        from driftlab.platform.scaling import staged
        from driftlab.platform.scaling.conditional import train_conditionally

        assert data is not None
        with deterministic(data.seed):
            plan = self._plan(model, data) if self.placement == "probed" else None
            branched = branch_model(model, data.size, SPACES[self.space], self.exits, plan)
            stage = Course(self.stage_epochs, self.learning_rate, self.batch)
            course = staged.StagedCourse(stage, self.operator_epochs, self.path_epochs)
            (train_conditionally if self.training == "conditional" else staged.train_stages)(branched, data, stage)
            staged.train_operators(branched, data, course)
            staged.train_paths(branched, data, course)
            val, test = (staged.grade_paths(branched, data, part) for part in (data.val, data.test))
        logger.info("Measured %d paths: %.3f to %.3f", len(val), min(val), max(val))
        return PathFamily(branched, val, test, plan)

    def _plan(self, model: nn.Module, data: Data) -> StagePlan:
        """Probe every block of a network."""
        from driftlab.platform.networks.chain import chain_of
        from driftlab.platform.networks.training.training_loop import Course
        from driftlab.platform.scaling.probing import plan_stages

        chain = chain_of(model, data.example(model), self.exits)
        return plan_stages(chain, data, self.exits, Course(self.probe_epochs, self.learning_rate, self.batch))

    def select(self, family: PathFamily, budget: Budget) -> nn.Module:
        """Return the chosen path's network; without a choice that of the most accurate path."""
        if budget.variant is None:
            which = most_accurate(family.val_accuracies)
        else:
            which = check_index(budget.variant, len(family))
        return family.branched.network(family.branched.space.decode(which))

    def absorb(self, family: PathFamily, variant: nn.Module) -> PathFamily:
        from driftlab.platform.networks.branched import PathNetwork

        if not isinstance(variant, PathNetwork):
            raise RequestError(f"This {type(variant).__name__} is none of the family's {len(family)} networks.")
        return replace(family, branched=family.branched.replaced(variant))

    def profile(self, family: PathFamily, size: Size) -> tuple[Profile, ...]:
        from driftlab.platform.networks.branched import count_paths, module_bytes

        branched, space = family.branched, family.branched.space
        held, costs = module_bytes(branched), count_paths(branched, *size)
        accuracies = zip(family.val_accuracies, family.test_accuracies, strict=True)
        return tuple(
            Profile(
                space.name(path := space.decode(which)), val, costs[which].weight_bytes, costs[which], test,
                tuple((name, held[name]) for name, _ in branched.used(path)),
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
        with deterministic(0):  # the weights drawn are replaced
            branched = branch_model(model, size, SPACES[self.space], self.exits, plan)
        for part, module in branched.parts():
            load(module, {key.partition("/")[2]: array for key, array in arrays.items() if key.startswith(f"{part}/")})
        val, test = (tuple(arrays[name].tolist()) for name in ("accuracies", "judged"))
        return PathFamily(branched, val, test, plan)


def branch_model(
    model: nn.Module, size: Size, operators: Operators, exits: int, plan: StagePlan | None = None
) -> Branched:
    """Cut a network into stages, at most so many or those of a plan, and give them operators and exits."""
    import torch

    from driftlab.platform.networks.branched import branch
    from driftlab.platform.networks.chain import chain_of
    from driftlab.platform.scaling.blocks import make_stage

    chain = chain_of(model, torch.zeros(1, 3, *size), plan.ends if plan else exits)
    operators = operators[: len(chain.stages)]
    return branch(chain, PathSpace(plan.operators(operators) if plan else operators), make_stage)


def exit_of(variant: Variant) -> int:
    """Return the exit of a path, from 1 on, by its name."""
    return variant.name.count(".") + 1


def full_depth(variants: Sequence[Variant]) -> list[int]:
    """List the paths to the last exit, by number: what a method without exits can choose among."""
    last = max(map(exit_of, variants))
    return [which for which, one in enumerate(variants) if exit_of(one) == last]


def deep_paths(variants: Sequence[Variant]) -> tuple[dict[tuple[str, ...], int], list[list[str]]]:
    """Return the paths to the last exit, each by its operators, and the operators of each stage."""
    paths = {tuple(variants[which].name.split(".")): which for which in full_depth(variants)}
    return paths, [list(dict.fromkeys(names)) for names in zip(*paths, strict=True)]


def held_paths(variants: Sequence[Variant], budget: Budget) -> dict[tuple[str, ...], int]:
    """Return the paths to the last exit that fit in the free memory, by operators; the smallest where none does."""
    paths, _ = deep_paths(variants)
    held = set(held_in_memory(variants, paths.values(), budget))
    return {path: which for path, which in paths.items() if which in held}


def held_among(variants: Sequence[Variant], found: Sequence[int], budget: Budget) -> list[int]:
    """Return which of these fit in the free memory; where none does, only the smallest path to the last exit."""
    held = held_in_memory(variants, full_depth(variants), budget)
    smallest = min(held, key=lambda which: (variants[which].memory_bytes, which))
    return [which for which in found if which in held] or [smallest]


@dataclass(frozen=True)
class Branches(OfPaths):
    """Run one path always: the whole network, or the network up to an exit, without operators."""

    exit: Annotated[int | None, Ge(1), Le(4), Means("the exit that always answers; none: the last one")] = field(
        default=None, metadata={CHOOSING: True}
    )

    def prefer(self, variants: Sequence[Variant], budget: Budget, state: Any) -> tuple[int, Any]:
        """Choose the path without operators to the exit, whatever the budget."""
        last = exit_of(variants[-1])
        wanted = min(self.exit or last, last)
        return max(which for which, one in enumerate(variants) if exit_of(one) == wanted), state
