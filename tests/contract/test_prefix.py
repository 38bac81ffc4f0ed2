"""A short run equals the start of a long one bit by bit, unless a plan reads the session's end."""

from __future__ import annotations

from functools import cache

import pytest

from driftlab.platform.core.registry import FAMILIES, Member, member_class
from driftlab.platform.lab.read import parse
from driftlab.platform.lab.seal import run
from driftlab.platform.results.tables.read import Tables, open_run
from driftlab.platform.streaming.base import StreamFacts
from driftlab.platform.tune.document import reads_end
from driftlab.tune_spaces.catalogue import host_of

pytestmark = pytest.mark.usefixtures("frames_drawn_once", "channels_found_once")

SHORT_S, LONG_S = 4.5, 6.0
STREET = {"name": "streets/running", "fps": 2, "height": 32, "width": 48}
SIGNS = {"name": "signs/seasons", "fps": 4, "height": 16, "width": 16}
QUICK = {
    "ams": {"interval_s": 2},
    "one_time": {"sample_s": 3, "iterations": 2},
    "just_in_time": {"max_steps": 1},
    "remote_tracking": {},
    "on_device": {"period_s": 2, "iterations": 1},
    "local": {},
    "distill": {"iterations": 2},
    "shot": {"iterations": 1, "batch": 4},
    "elasticdnn": {"iterations": 1},
    "elasticdnn_cua": {"iterations": 1},
    "elasticdnn_teacher": {"iterations": 1},
    "bufr": {"iterations": 1, "batch": 4},
    "conda": {"iterations": 1, "batch": 4},
    "cua": {"iterations": 1, "batch": 4},
    "ace": {"iterations": 1, "batch": 4},
    "iada": {"iterations": 1, "batch": 4, "source_steps": 10},
    "frozen": {},
}
MEMBERS = [(family, name) for family in ("streaming", "adaptation") for name in FAMILIES[family]]
ENDS = {"foresight"}
TESTED = [one for one in MEMBERS if one[1] not in ENDS]


def on_stream(family, name):
    return family == "adaptation" and member_class(family, name)().learns_on_stream and name not in QUICK


def quick(family, name):
    """Make an online member train on four frames at a time; if a policy wraps one, set it there."""
    if not on_stream(family, name):
        return QUICK.get(name, {})
    of_policy = hasattr(member_class(family, name)(), "member_params")
    return {"member_params": ["stream_batch=4"]} if of_policy else {"stream_batch": 4}


@cache
def system_of(family, name):
    """Return a system with the member, named after it, with quick parameters of its members."""
    row = host_of(family, name)
    system = parse({"name": "prefix", "systems": [row], "bounds": False, **place_of(family, name)}).systems[0]
    slots = {
        slot: {**getattr(system, slot), **quick(slot, getattr(system, slot)["name"])}
        for slot in FAMILIES
        if slot in ("streaming", "adaptation")
    }
    return {"base": row["name"], **row, "name": f"{family}-{name}", **slots}


def place_of(family, name):
    on_signs = (family == "adaptation" and name not in ("distill", "frozen")) or name == "on_device"
    network = "tiny_classifier" if on_signs else "half"
    return {"workloads": [SIGNS if on_signs else STREET], "student": {"network": network, "pretrain_steps": 2}}


def experiment_of(place, systems, duration_s):
    (workload,) = place["workloads"]
    return {
        "name": "prefix",
        "systems": systems,
        **place,
        "workloads": [{**workload, "duration_s": duration_s}],
        "bounds": False,
        "snapshots": 0,
        "window_s": 2,
        "server": {"label_s": 0.01, "step_s": 0.01},
    }


@pytest.fixture(scope="module")
def runs_of(tmp_path_factory):
    """Run the members of a place together, for both lengths, when the first of them is tested."""

    @cache
    def runs(workload):
        members = [one for one in TESTED if place_of(*one)["workloads"][0]["name"] == workload]
        systems, found = [system_of(*one) for one in members], []
        for length in (SHORT_S, LONG_S):
            document = experiment_of(place_of(*members[0]), systems, length)
            found.append(Tables(open_run(run(document, out=tmp_path_factory.mktemp("run")).directory)))
        return found

    return runs


def rows_before(found, system, table, time, time_s):
    frame = found.frame(table)
    frame = frame[frame["cell"].str.startswith(f"{system}/") & (frame[time] < time_s)]
    return frame[[name for name in frame if not name.startswith("host_")]].reset_index(drop=True)


@pytest.mark.parametrize(("family", "name"), TESTED)
def test_a_short_run_is_the_beginning_of_a_longer_one(family, name, runs_of):
    place, system = place_of(family, name), system_of(family, name)
    (workload,) = place["workloads"]
    assert reads_end(parse(experiment_of(place, [system], SHORT_S))) == ""
    runs = runs_of(workload["name"])
    short, long = (rows_before(one, system["name"], "frames", "time_s", SHORT_S) for one in runs)
    assert len(short) == SHORT_S * workload["fps"]
    late = "batch" in repr(system) or on_stream(family, name)
    cut = SHORT_S - (1.0 if late else 0.0)  # a batch that is still open at the end is predicted in the longer run
    short, long = (rows[rows["time_s"] < cut] for rows in (short, long))
    assert short.equals(long)
    short, long = (rows_before(one, system["name"], "transfers", "arrive_s", SHORT_S) for one in runs)
    assert short.equals(long)


@pytest.mark.parametrize("name", FAMILIES["streaming"])
def test_a_plan_is_the_same_in_a_longer_session_unless_the_member_declares_otherwise(name):
    member = Member("streaming", name, tuple(QUICK.get(name, {}).items())).make()
    short, long = (StreamFacts(fps=2.0, duration_s=length) for length in (SHORT_S, LONG_S))
    plans = [member.plan_uplink(member.start(facts), facts, 0.0, _seen()) for facts in (short, long)]
    assert member.reads_end(short) or plans[0] == plans[1]


def test_members_that_read_the_end_declare_it():
    facts = StreamFacts(fps=2.0, duration_s=30.0)
    ends = {name for name in FAMILIES["streaming"] if Member("streaming", name).make().reads_end(facts)}
    assert ends == {"foresight", "one_time"}
    assert not Member("streaming", "one_time", (("sample_s", 20),)).make().reads_end(facts)


def _seen():
    from driftlab.platform.streaming.base import Seen

    return Seen()
