"""What every member of the scheduling family promises."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftlab.platform.core.catalogue import FAMILIES, Member, member_class, parameters
from driftlab.platform.core.records import Variant
from driftlab.platform.scheduling.base import Allocation, Demand, Scheduling, Window

VARIANTS = st.lists(
    st.builds(
        Variant,
        name=st.sampled_from("mnopq"),
        accuracy=st.none() | st.floats(0, 1),
        memory_bytes=st.integers(1, 10**9),
        latency_s=st.floats(1e-6, 10),
        energy_j=st.none() | st.floats(0, 10),
    ),
    min_size=1,
    max_size=5,
)


def demand(variants: list[Variant], **asked: Any) -> Demand:
    """Variants come from the smallest on; one of them may be what runs now."""
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
)
WINDOWS = st.builds(
    Window,
    start_s=st.floats(0, 1e4),
    window_s=st.floats(0.1, 100),
    memory_bytes=st.integers(1, 10**10),
    demands=st.lists(DEMANDS, max_size=8, unique_by=lambda demand: demand.app).map(tuple),
)


@pytest.mark.parametrize("name", sorted(FAMILIES["scheduling"]))
class TestEveryScheduling:
    def test_its_parameters_are_data(self, name):
        cls = member_class("scheduling", name)
        assert issubclass(cls, Scheduling)
        assert dataclasses.is_dataclass(cls)
        assert cls.__dataclass_params__.frozen
        assert cls() == cls()
        assert not hasattr(cls, "faults") or cls().faults() == []
        for key, (_, default) in parameters(cls).items():
            assert Member("scheduling", name, ((key, default),)).make() == cls()

    def test_it_says_in_one_line_what_it_does(self, name):
        first, *rest = (member_class("scheduling", name).__doc__ or "").splitlines()
        assert 10 < len(first) <= 120
        assert first.endswith(".")
        assert not rest or rest[0] == ""

    def test_the_driver_reads_it_without_torch(self, name):
        module = FAMILIES["scheduling"][name].partition(":")[0]
        code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

    @settings(max_examples=40, deadline=None)
    @given(window=WINDOWS)
    def test_shares_are_of_one_machine_and_of_everyone_who_asked(self, name, window):
        allocation = Member("scheduling", name).make().allocate(window)
        assert isinstance(allocation, Allocation)
        assert len(allocation.shares) == len(window.demands)
        assert all(0 <= share <= 1 for share in allocation.shares)
        assert sum(allocation.shares) <= 1 + 1e-9
        assert bool(window.demands) <= (sum(allocation.shares) > 0 or any(allocation.notes))

    @settings(max_examples=40, deadline=None)
    @given(window=WINDOWS)
    def test_who_runs_has_a_share_and_a_network(self, name, window):
        allocation = Member("scheduling", name).make().allocate(window)
        assert len(allocation.variants) in (0, len(window.demands))
        for share, variant, demand in zip(allocation.shares, allocation.variants, window.demands, strict=False):
            assert (variant is None) == (share == 0)
            assert variant is None or 0 <= variant < len(demand.variants)

    @settings(max_examples=30, deadline=None)
    @given(window=WINDOWS)
    def test_it_is_a_pure_function(self, name, window):
        kept = repr(window)
        first, second = (Member("scheduling", name).make().allocate(window) for _ in range(2))
        assert first == second
        assert repr(window) == kept

    @settings(max_examples=30, deadline=None)
    @given(first=WINDOWS, second=WINDOWS)
    def test_what_it_hands_on_serves_the_next_window_whatever_that_is(self, name, first, second):
        member = Member("scheduling", name).make()
        state = pickle.loads(pickle.dumps(member.allocate(first).state))
        allocation = member.allocate(dataclasses.replace(second, state=state))
        assert len(allocation.shares) == len(second.demands)
        assert sum(allocation.shares) <= 1 + 1e-9

    @settings(max_examples=40, deadline=None)
    @given(window=WINDOWS)
    def test_networks_fit_into_memory_together_or_a_note_says_that_they_do_not(self, name, window):
        allocation = Member("scheduling", name).make().allocate(window)
        chosen = zip(window.demands, allocation.variants, strict=False)
        held_bytes = sum(demand.variants[i].memory_bytes for demand, i in chosen if i is not None)
        assert held_bytes <= window.memory_bytes or any(f"need {held_bytes} bytes" in note for note in allocation.notes)

    def test_who_is_alone_has_the_machine(self, name):
        window = Window(0.0, 10.0, 10**9, (Demand("a", 2.0, (Variant("m", 0.9, 10**6, 0.1),)),))
        assert Member("scheduling", name).make().allocate(window).shares == (1.0,)
