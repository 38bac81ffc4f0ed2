"""The order of training rounds on a server: by arrival, or by gain under a scheduler of the server."""

from __future__ import annotations

from collections import Counter

import pytest
from served_factory import ASKED

from driftlab.platform.field.request import parse_session_request
from driftlab.platform.sim.rounds import RoundGain
from driftlab.serve_apps.fair_queue import FairQueue
from driftlab.serve_apps.hosting import HostedSession


def sessions(folder, system):
    opened = [
        HostedSession(folder / str(number), parse_session_request({**ASKED, "system": system})) for number in range(2)
    ]
    for number, session in enumerate(opened):
        session.waiting.append(None)
        session.waits_since_s = float(number)
    return opened


@pytest.mark.slow
def test_the_longest_waiting_session_is_next(tmp_path):
    first, second = sessions(tmp_path, "ams")
    assert not first.weighs
    assert FairQueue().next_of([second, first]) is first
    first.ask_all()
    assert FairQueue().next_of([second, first]) is first  # its upload has waited longer
    first.waiting.clear()
    first.asked_all = False
    first.ask_all()
    assert FairQueue().next_of([second, first]) is second


@pytest.mark.slow
@pytest.mark.parametrize("gains", [(0.2, 0.01), (0.01, 0.2)])
def test_a_scheduler_gives_more_rounds_to_the_session_with_more_gain(tmp_path, gains):
    ready = sessions(tmp_path, "ams+joint")
    assert all(session.weighs for session in ready)
    for session, gain in zip(ready, gains, strict=True):
        session.app.learner.last_gain = RoundGain(session.now_s(), 10.0, 1.0, 0.6, gain)
        session._clock = (session._clock[0] + 10.0, session._clock[1])
    queue = FairQueue()
    rounds = Counter(ready.index(queue.next_of(ready)) for _ in range(20))
    best = gains.index(max(gains))
    assert rounds[best] > rounds[1 - best]
