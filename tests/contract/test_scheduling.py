"""Contract of every scheduling member."""

from __future__ import annotations

import dataclasses
import math
import pickle
from typing import Any, get_args

import numpy as np
import pytest
import scheduling_factory as factory
from hypothesis import example, given, note, settings
from hypothesis import strategies as st

from driftlab.errors import RunError
from driftlab.platform.core.records import LoadReading, Resource, Share, TaskCost, Variant
from driftlab.platform.core.registry import FAMILIES, Member, member_class
from driftlab.platform.scheduling.base import (
    ALL_TRIGGERS,
    Allocation,
    Demand,
    Reason,
    SchedulerInput,
    TrainingConfig,
    TrainingOffer,
)

ENGINES: tuple[Resource, ...] = get_args(Resource)
ROUNDING = 1e-9
MEMBERS = {name: Member("scheduling", name).make() for name in sorted(FAMILIES["scheduling"])}
ACCURACIES = st.none() | st.floats(0, 1) | st.just(math.nan)
VARIANTS = st.lists(
    st.builds(
        Variant,
        name=st.sampled_from("mnopq"),
        accuracy=ACCURACIES,
        memory_bytes=st.integers(1, 10**9),
        latency_s=st.floats(1e-6, 10),
        energy_j=st.none() | st.floats(0, 10),
    ),
    min_size=1,
    max_size=5,
)
NEEDS = st.builds(
    TaskCost,
    seconds=st.dictionaries(st.sampled_from(ENGINES), st.floats(0, 100)),
    memory_bytes=st.integers(0, 10**9),
    joules=st.floats(0, 100),
)
CONFIGS = st.lists(
    st.builds(TrainingConfig, name=st.sampled_from("xyz"), cost=NEEDS, accuracy=ACCURACIES), min_size=1, max_size=3
)
OFFERED = st.builds(TrainingOffer, state=st.just("offered"), configs=CONFIGS.map(tuple), accuracy_before=ACCURACIES)
RUNNING = st.builds(
    TrainingOffer, state=st.just("running"), left=NEEDS, accuracy_before=ACCURACIES, accuracy_after=ACCURACIES
)


def demand(variants: list[Variant], **asked: Any) -> Demand:
    """Draw variants in order of size; one of them may be running."""
    running = asked.pop("running")
    ordered = tuple(sorted(variants, key=lambda variant: variant.memory_bytes))
    return Demand(variants=ordered, running=None if running is None else running % len(ordered), **asked)


DEMANDS = st.builds(
    demand,
    app=st.sampled_from("abcdefgh"),
    fps=st.floats(0.1, 60),
    variants=VARIANTS,
    running=st.none() | st.integers(0, 4),
    accuracy_goal=st.none() | st.floats(0, 1),
    latency_goal_s=st.none() | st.floats(0, 10),
    priority=st.floats(0.1, 10),
    nested=st.booleans(),
    learning=st.none() | OFFERED | RUNNING,
    observed=ACCURACIES,
    observed_by=st.none() | st.sampled_from(["teacher", "confidence", "oracle"]),
)
READINGS = st.builds(LoadReading, time_s=st.floats(0, 1e4), cpu=st.floats(0, 1), memory_bytes=st.integers(0, 10**10))
WINDOWS = st.builds(
    SchedulerInput,
    start_s=st.floats(0, 1e4),
    window_s=st.floats(0.1, 100),
    memory_bytes=st.integers(1, 10**10),
    demands=st.lists(DEMANDS, max_size=8, unique_by=lambda demand: demand.app).map(tuple),
    reason=st.sampled_from(sorted(ALL_TRIGGERS)),
    load=st.lists(READINGS, max_size=3).map(tuple),
)
FROM_NOTHING = SchedulerInput(  # its network scores 0 until its training ends
    start_s=0.0,
    window_s=2.0,
    memory_bytes=1,
    demands=(
        demand(
            [Variant("m", None, 1, 1.0, None)],
            running=None,
            app="a",
            fps=1.0,
            accuracy_goal=None,
            latency_goal_s=None,
            priority=1.0,
            nested=False,
            learning=TrainingOffer("running", left=TaskCost({"accelerator": 1.0}, 0, 0.0), accuracy_after=1.0),
            observed=0.0,
            observed_by=None,
        ),
    ),
    reason="arrival",
)

(ASKED,) = FROM_NOTHING.demands
EXPECTED_NOTHING = dataclasses.replace(  # the same, expected and not observed
    ASKED,
    variants=(dataclasses.replace(ASKED.variants[0], latency_s=9.999999999999998),),
    observed=None,
    learning=dataclasses.replace(ASKED.learning, accuracy_before=0.0),
)


EXPECTED_GAIN = dataclasses.replace(  # in a window of 2 s: training ends after 1 s alone, and at its end otherwise
    ASKED, observed=None, learning=dataclasses.replace(ASKED.learning, accuracy_before=0.125)
)


def is_useful(asked: Demand) -> bool:
    """Return whether predictions are worth their part of the processor before training ends.

    Otherwise training may take all of it: if they are wrong until then, or less right than after it.
    """
    training = asked.learning
    if training is None:
        return True
    before, after = training.accuracy_before, training.accuracy_after
    gains = training.state == "running" and before is not None and after is not None and after > before
    return 0 not in (asked.observed, before) and not gains


def part(share: Share | None, engine: Resource) -> float:
    """Return the share of one resource."""
    if share is None:  # training takes a part of the inference share
        return 0.0
    return share if isinstance(share, float) else share.get(engine, 0.0)


def inference_shares(allocation: Allocation, engine: Resource = "accelerator") -> list[float]:
    return [part(grant.inference_share, engine) for grant in allocation.grants]


def check(window: SchedulerInput, allocation: Allocation) -> None:
    """Check that shares add up to one processor, and that every grant is an option of its application."""
    assert isinstance(allocation, Allocation)
    for engine in ENGINES:
        parts = [
            part(share, engine)
            for grant in allocation.grants
            for share in (grant.inference_share, grant.training_share)
        ]
        assert all(0 <= each <= 1 for each in parts)
        assert sum(parts) <= 1 + ROUNDING
    networks_chosen = any(grant.variant is not None for grant in allocation.grants)
    for grant, asked in zip(allocation.grants, window.demands, strict=True):
        runs = any(part(grant.inference_share, engine) for engine in ENGINES)
        assert (grant.variant is not None) == (runs and networks_chosen)
        assert grant.variant is None or 0 <= grant.variant < len(asked.variants)
        if asked.learning is not None and asked.learning.state == "offered":
            assert grant.config is None or 0 <= grant.config < len(asked.learning.configs)
        assert isinstance(grant.interleave_group, str)
        assert isinstance(grant.note, str)


class TestAnyWindow:
    """Each drawn window is used for all members, because drawing takes longer than their decisions."""

    @settings(max_examples=60, deadline=None)
    @given(window=WINDOWS)
    @example(window=FROM_NOTHING)
    @example(window=dataclasses.replace(FROM_NOTHING, demands=(EXPECTED_NOTHING,)))
    @example(window=dataclasses.replace(FROM_NOTHING, demands=(EXPECTED_GAIN,)))
    def test_grants_add_up_to_one_processor_and_are_deterministic(self, window):
        kept = repr(window)
        useful = any(map(is_useful, window.demands))
        for name, member in MEMBERS.items():
            note(name)
            allocation = member.allocate(window)
            check(window, allocation)
            notes = [grant.note for grant in allocation.grants]
            assert useful <= (sum(inference_shares(allocation)) > 0 or any(notes))
            assert Member("scheduling", name).make().allocate(window) == allocation
            assert repr(window) == kept

    @settings(max_examples=40, deadline=None)
    @given(first=WINDOWS, second=WINDOWS)
    def test_state_is_valid_input_of_any_next_window(self, first, second):
        for name, member in MEMBERS.items():
            note(name)
            state = pickle.loads(pickle.dumps(member.allocate(first).state))
            check(second, member.allocate(dataclasses.replace(second, state=state)))

    @settings(max_examples=60, deadline=None)
    @given(window=WINDOWS)
    def test_networks_fit_into_memory_or_a_note_reports_the_excess(self, window):
        for name, member in MEMBERS.items():
            note(name)
            grants = member.allocate(window).grants
            chosen = [(asked, grant.variant) for asked, grant in zip(window.demands, grants, strict=True)]
            held_bytes = sum(asked.variants[i].memory_bytes for asked, i in chosen if i is not None)
            reported = any(f"need {held_bytes} bytes" in grant.note for grant in grants)
            assert held_bytes <= window.memory_bytes or reported


@pytest.mark.parametrize("name", sorted(FAMILIES["scheduling"]))
class TestEveryScheduling:
    def test_its_triggers_are_valid(self, name):
        assert {"window"} <= member_class("scheduling", name).triggers <= ALL_TRIGGERS == {*get_args(Reason)}

    def test_its_requirements_are_valid(self, name):
        member = Member("scheduling", name).make()
        trials = list(member.initial_trials(3))
        assert set(trials) <= set(range(3))
        assert len(trials) == len(set(trials))
        assert 0 < member.trial_fraction <= 1
        assert member.recall_drop is None or -1 <= member.recall_drop < 1
        for flag in (member.uses_estimates, member.waits_for_all_offers, member.schedules_server):
            assert isinstance(flag, bool)
        assert member.uses_estimates or not trials

    @pytest.mark.parametrize("reason", get_args(Reason))
    def test_it_allocates_for_every_reason(self, name, reason):
        window = dataclasses.replace(factory.window(factory.demands(5)), reason=reason)
        check(window, Member("scheduling", name).make().allocate(window))

    @pytest.mark.parametrize("apps", [0, 1, 101])
    def test_it_allocates_to_any_number_of_applications(self, name, apps):
        demands = factory.demands(1, apps) if apps else ()
        window = SchedulerInput(0.0, 10.0, 10**12, demands)
        allocation = Member("scheduling", name).make().allocate(window)
        check(window, allocation)
        assert sum(inference_shares(allocation)) == pytest.approx(1.0 if apps else 0.0)

    @pytest.mark.parametrize("memory", [1.0, 0.6])
    def test_order_of_arrival_matters_only_among_equals(self, name, memory):
        """Drawn numbers make no two plans equal; a local search may still end in another optimum occasionally."""
        member = Member("scheduling", name).make()
        differ = 0
        for seed in range(30):
            window = factory.window(factory.demands(seed), memory)
            order = np.random.default_rng(seed).permutation(len(window.demands))
            turned = dataclasses.replace(window, demands=tuple(window.demands[i] for i in order))
            first, second = member.allocate(window).grants, member.allocate(turned).grants
            pairs = [(first[i], grant) for i, grant in zip(order, second, strict=True)]
            shares = [(before.inference_share, after.inference_share) for before, after in pairs]
            same = all(
                dataclasses.replace(after, inference_share=before.inference_share) == before for before, after in pairs
            )
            differ += not (same and all(one == pytest.approx(other) for one, other in shares))
        assert differ <= 1

    def test_nan_accuracy_counts_as_unmeasured(self, name):
        def with_accuracy(one: Demand, which: int, accuracy: float | None) -> Demand:
            networks = list(one.variants)
            networks[which] = dataclasses.replace(networks[which], accuracy=accuracy)
            return dataclasses.replace(one, variants=tuple(networks))

        for seed in range(10):
            window = factory.window(factory.demands(seed), 0.7)
            some, member = seed % 5, Member("scheduling", name).make()
            first, second = (
                dataclasses.replace(window, demands=tuple(with_accuracy(one, some, accuracy) for one in window.demands))
                for accuracy in (None, math.nan)
            )
            assert member.allocate(first) == member.allocate(second)

    def test_single_application_has_the_whole_processor(self, name):
        window = SchedulerInput(0.0, 10.0, 10**9, (Demand("a", 2.0, (Variant("m", 0.9, 10**6, 0.1),)),))
        assert inference_shares(Member("scheduling", name).make().allocate(window)) == [1.0]


def asked(**changed: Any) -> SchedulerInput:
    """Return a window of one application that offers a training, with some values changed."""
    offer = TrainingOffer(
        "offered", (TrainingConfig("way", TaskCost({"cpu": 5.0}), 0.8, size=0.5),), accuracy_before=0.5
    )
    network = Variant("m", 0.9, 10**6, 0.1)
    of_app = {"app": "a", "fps": 2.0, "variants": (network,), "learning": offer}
    of_window = {"start_s": 0.0, "window_s": 10.0, "memory_bytes": 10**9}
    for name, value in changed.items():
        (of_window if name in (*of_window, "left_s") else of_app)[name] = value
    return SchedulerInput(demands=(Demand(**of_app),), **of_window)


def offered(**changed: Any) -> TrainingOffer:
    """Return an offer of one configuration with some values changed."""
    cost = {name: changed.pop(name) for name in ("seconds", "memory_bytes", "joules") if name in changed}
    given = TrainingConfig("way", TaskCost(**{"seconds": {"cpu": 5.0}, **cost}), 0.8, **changed)
    return TrainingOffer("offered", (given,), accuracy_before=0.5)


IMPOSSIBLE = {
    "window_s is": [lambda s=s: asked(window_s=s) for s in (math.inf, math.nan, 0.0, -1.0)],
    "start_s is": [lambda s=s: asked(start_s=s) for s in (math.inf, math.nan)],
    "left_s is": [lambda s=s: asked(left_s=s) for s in (math.nan, -1.0)],
    "memory_bytes is": [lambda: asked(memory_bytes=-1)],
    "fps of a is": [lambda f=f: asked(fps=f) for f in (math.inf, math.nan, 0.0, -1.0)],
    "priority of a is": [lambda p=p: asked(priority=p) for p in (math.inf, math.nan, 0.0)],
    "the goals of a are": [
        *(lambda g=g: asked(latency_goal_s=g) for g in (math.nan, -1.0)),
        lambda: asked(accuracy_goal=math.nan),
        lambda: asked(energy_goal_j=math.nan),
    ],
    "observed_s of a is": [lambda: asked(observed=0.5, observed_s=math.nan)],
    "'way' takes": [
        *(lambda s=s: asked(learning=offered(seconds={"cpu": s})) for s in (-1.0, math.nan)),
        *(lambda j=j: asked(learning=offered(joules=j)) for j in (-1.0, math.nan, math.inf)),
        lambda: asked(learning=offered(memory_bytes=-1)),
    ],
    "'way' has size": [lambda s=s: asked(learning=offered(size=s)) for s in (math.nan, math.inf, 0.0)],
    "'way' has a trial": [lambda f=f: asked(learning=offered(trial_fraction=f)) for f in (math.nan, 0.0, 1.5)],
    "takes -2 s on cpu": [lambda: asked(learning=TrainingOffer("running", left=TaskCost({"cpu": -2.0})))],
    "never ends": [lambda: asked(learning=TrainingOffer("running", left=TaskCost({"cpu": math.inf})))],
}


@pytest.mark.parametrize("message", IMPOSSIBLE)
def test_impossible_input_is_refused_before_any_scheduler_plans(message):
    for make in IMPOSSIBLE[message]:
        for member in MEMBERS.values():
            with pytest.raises(RunError, match=message):
                member.allocate(make())


def test_possible_input_of_the_same_form_is_planned_by_every_scheduler():
    given = asked(learning=offered(size=1.0, trial_fraction=1.0), left_s=0.0, accuracy_goal=0.9, latency_goal_s=0.0)
    for member in MEMBERS.values():
        check(given, member.allocate(given))
