"""A short run equals the start of a long one bit by bit, unless a plan reads the session's end."""

from __future__ import annotations

import pytest

from driftlab.platform.core.registry import FAMILIES, Member, member_class
from driftlab.platform.lab.read import parse
from driftlab.platform.lab.seal import run
from driftlab.platform.results.tables.read import open_run
from driftlab.platform.streaming.base import StreamFacts
from driftlab.platform.tune.document import reads_end
from driftlab.tune_spaces.catalogue import host_of

pytestmark = pytest.mark.usefixtures("frames_drawn_once")

SHORT_S, LONG_S = 5.0, 8.0
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


def on_stream(family, name):
    return family == "adaptation" and member_class(family, name)().learns_on_stream and name not in QUICK


def quick(family, name):
    """Make an online member train on four frames at a time; if a policy wraps one, set it there."""
    if not on_stream(family, name):
        return QUICK.get(name, {})
    of_policy = hasattr(member_class(family, name)(), "member_params")
    return {"member_params": ["stream_batch=4"]} if of_policy else {"stream_batch": 4}


def experiment_of(family, name, duration_s):
    row = host_of(family, name)
    on_signs = (family == "adaptation" and name not in ("distill", "frozen")) or name == "on_device"
    network = "tiny_classifier" if on_signs else "half"
    place = {"workloads": [SIGNS if on_signs else STREET], "student": {"network": network}}
    system = parse({"name": "prefix", "systems": [row], "bounds": False, **place}).systems[0]
    slots = {
        slot: {**getattr(system, slot), **quick(slot, getattr(system, slot)["name"])}
        for slot in FAMILIES
        if slot in ("streaming", "adaptation")
    }
    return {
        "name": "prefix",
        "systems": [{**row, **slots}],
        "workloads": [{**(SIGNS if on_signs else STREET), "duration_s": duration_s}],
        "bounds": False,
        "snapshots": 0,
        "window_s": 2,
        "student": {"network": network, "pretrain_steps": 2},
        "server": {"label_s": 0.01, "step_s": 0.01},
    }


def rows_before(found, table, time, time_s):
    frame = found.frame(table)
    frame = frame[frame[time] < time_s]
    return frame[[name for name in frame if not name.startswith("host_")]].reset_index(drop=True)


@pytest.mark.parametrize(("family", "name"), [one for one in MEMBERS if one[1] not in ENDS])
def test_a_short_run_is_the_beginning_of_a_longer_one(family, name, tmp_path):
    documents = [experiment_of(family, name, length) for length in (SHORT_S, LONG_S)]
    assert reads_end(parse(documents[0])) == ""
    runs = [open_run(run(document, out=tmp_path / str(k)).directory) for k, document in enumerate(documents)]
    short, long = (rows_before(one, "frames", "time_s", SHORT_S) for one in runs)
    assert len(short) == SHORT_S * documents[0]["workloads"][0]["fps"]
    late = "batch" in repr(documents[0]["systems"]) or on_stream(family, name)
    cut = SHORT_S - (1.0 if late else 0.0)  # a batch that is still open at the end is predicted in the longer run
    short, long = (rows[rows["time_s"] < cut] for rows in (short, long))
    assert short.equals(long)
    short, long = (rows_before(one, "transfers", "arrive_s", SHORT_S) for one in runs)
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
