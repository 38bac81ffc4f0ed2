"""Turns of sessions on a server: in order of arrival, and by what rounds gain under a scheduler of the server."""

from __future__ import annotations

from collections import Counter

import pytest
from served_factory import ASKED

from driftlab.platform.field.request import read_asked
from driftlab.platform.sim.rounds import RoundGain
from driftlab.serve_apps.fair_queue import Turns
from driftlab.serve_apps.hosting import HostedSession


def sessions(folder, system):
    found = [HostedSession(folder / str(number), read_asked({**ASKED, "system": system})) for number in range(2)]
    for number, session in enumerate(found):
        session.waiting.append(None)
        session.waits_since_s = float(number)
    return found


@pytest.mark.slow
def test_who_waits_longest_is_next(tmp_path):
    first, second = sessions(tmp_path, "ams")
    assert not first.weighs
    assert Turns().next_of([second, first]) is first
    first.ask_all()
    assert Turns().next_of([second, first]) is first  # which waits since its upload came
    first.waiting.clear()
    first.asked_all = False
    first.ask_all()
    assert Turns().next_of([second, first]) is second


@pytest.mark.slow
@pytest.mark.parametrize("gains", [(0.2, 0.01), (0.01, 0.2)])
def test_a_scheduler_of_the_server_gives_more_turns_to_rounds_that_gain_more(tmp_path, gains):
    ready = sessions(tmp_path, "ams+joint")
    assert all(session.weighs for session in ready)
    for session, gain in zip(ready, gains, strict=True):
        session.app.learner.gained = RoundGain(session.now_s(), 10.0, 1.0, 0.6, gain)
        session._clock = (session._clock[0] + 10.0, session._clock[1])
    turns = Turns()
    had = Counter(ready.index(turns.next_of(ready)) for _ in range(20))
    best = gains.index(max(gains))
    assert had[best] > had[1 - best]
