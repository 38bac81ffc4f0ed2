"""A link against closed forms, and its outages against integration in small steps."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simpy.rt import RealtimeEnvironment

from driftlab.errors import RequestError
from driftlab.platform.world.clock import make_clock
from driftlab.platform.world.link import (
    LINKS,
    Link,
    LinkProfile,
    Outages,
    RadioMeter,
    Transfer,
    find,
    from_mapping,
)


def carry(messages, *, rate_kbps=80.0, rtt_ms=100.0, loss=0.0, outages=None, flights=None, seed=0):
    """Send messages (time, bytes) and return their transfers in order of arrival."""
    clock = make_clock("virtual")
    link = Link(clock, rate_kbps, flights or (rtt_ms / 2000,), loss, outages or Outages(), np.random.default_rng(seed))
    arrived: list[Transfer] = []

    def sender(at_s, size_bytes):
        yield clock.timeout(at_s)
        arrived.append((yield from link.send(size_bytes)))
        assert clock.now == arrived[-1].arrive_s

    for at_s, size_bytes in messages:
        clock.process(sender(at_s, size_bytes))
    clock.run()
    return arrived


def test_a_message_takes_its_bits_over_the_rate_and_half_a_round_trip():
    (transfer,) = carry([(2.0, 10_000)])  # 80 kbit at 80 kbit/s: one second
    assert (transfer.queued_s, transfer.start_s) == (2.0, 2.0)
    assert transfer.sent_s == pytest.approx(3.0)
    assert transfer.arrive_s == pytest.approx(3.05)
    assert (transfer.bytes, transfer.wire_bytes, transfer.retransmissions) == (10_000, 10_000, 0)


def test_the_next_message_starts_when_the_last_bit_is_on_the_link_not_when_it_arrives():
    transfers = carry([(0.0, 10_000), (0.5, 5_000), (0.6, 0), (9.0, 10_000)], rtt_ms=8000)
    assert [t.start_s for t in transfers] == pytest.approx([0.0, 1.0, 1.5, 9.0])
    assert [t.arrive_s for t in transfers] == pytest.approx([5.0, 5.5, 5.5, 14.0])
    assert [t.queued_s for t in transfers] == [0.0, 0.5, 0.6, 9.0]


def test_simultaneous_messages_keep_their_order():
    sizes = [900, 10, 500, 0, 700]
    assert [t.bytes for t in carry([(1.0, size) for size in sizes])] == sizes


def test_measured_delays_are_replayed_and_messages_arrive_in_order():
    flights = [0.5, 0.1, 0.3]
    transfers = carry([(0.1 * i, 0) for i in range(5)], flights=flights)
    assert [t.arrive_s for t in transfers] == pytest.approx([0.5, 0.5, 0.5, 0.8, 0.8])
    link = LinkProfile("measured", 100, 100, rtt_ms=400, down_flights_s=tuple(flights))
    directions = [opens(make_clock("virtual"), np.random.default_rng(0)) for opens in (link.up, link.down)]
    assert [[one._flight_s(10.0 * i) for i in range(4)] for one in directions] == [[0.2] * 4, [*flights, 0.5]]


def test_transmission_pauses_during_outages():
    outages = Outages(((1.0, 3.0), (4.0, 4.5)))
    first, second = carry([(0.0, 25_000), (6.0, 0)], outages=outages, rtt_ms=0)  # 2.5 s of bits: 1 + 1 + 0.5
    assert (first.sent_s, second.sent_s) == (pytest.approx(5.0), 6.0)
    (during,) = carry([(2.0, 0)], outages=outages, rtt_ms=0)
    assert during.sent_s == 3.0


def test_a_message_may_end_just_as_an_outage_begins():
    assert Outages(((1.0, 3.0),)).finish_s(0.0, 1.0) == 1.0
    assert Outages(((1.0, 3.0),)).finish_s(1.0, 0.0) == 3.0


eighths = st.integers(0, 40)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    edges=st.lists(st.integers(0, 24), min_size=0, max_size=6, unique=True).map(sorted),
    gap=st.one_of(st.none(), st.integers(1, 8)),
    start=eighths,
    work=eighths,
)
def test_outages_agree_with_integration_in_small_steps(edges, gap, start, work):
    """Windows, starts and work are on a grid of 1/8 s, so that integration on the grid is exact."""
    windows = list(zip(edges[::2], edges[1::2], strict=False))
    period = None if gap is None or not windows else windows[-1][1] + gap

    def down(cell):
        return any(a <= (cell % period if period else cell) < b for a, b in windows)

    cell, left = start, work
    while left or down(cell):
        left -= not down(cell)
        cell += 1
        if not left and work:
            break
    outages = Outages(tuple((a / 8, b / 8) for a, b in windows), None if period is None else period / 8)
    assert outages.finish_s(start / 8, work / 8) == float(Fraction(cell, 8))


def test_lost_packets_are_retransmitted_and_counted():
    size = 100 * 1500 + 700
    transfers = carry([(0.0, size)] * 200, loss=0.2, seed=3)
    for transfer in transfers:
        extra = transfer.wire_bytes - transfer.bytes
        assert extra >= 0
        assert extra % 1500 in {(700 * k) % 1500 for k in range(12)}
        assert transfer.sent_s - transfer.start_s == pytest.approx(transfer.wire_bytes * 8 / 80_000)
    mean = np.mean([transfer.retransmissions for transfer in transfers])
    assert mean == pytest.approx(101 * 0.2 / 0.8, rel=0.05)  # of a negative binomial; 25.25 with error 0.4


def test_short_last_packet_is_retransmitted_at_its_size():
    transfers = carry([(0.0, 700)] * 50, loss=0.5, seed=1)
    assert all(t.wire_bytes == 700 * (1 + t.retransmissions) for t in transfers)
    assert sum(t.retransmissions for t in transfers) > 10


def test_the_same_seed_loses_the_same_packets():
    messages = [(0.0, 50_000), (1.0, 20_000)]
    assert carry(messages, loss=0.1, seed=5) == carry(messages, loss=0.1, seed=5)
    assert carry(messages, loss=0.1, seed=5) != carry(messages, loss=0.1, seed=6)


def test_a_wall_clock_runs_the_same_processes():
    clock = make_clock("wall", factor=0.0)
    assert isinstance(clock, RealtimeEnvironment)
    link = LINKS["wifi"].up(clock, np.random.default_rng(0))
    transfer = clock.run(clock.process(link.send(33_000_000 // 8)))
    assert transfer.arrive_s == pytest.approx(1.001)


def test_presets_are_found_by_name_and_null_is_free():
    assert find("lte") is LINKS["lte"]
    assert (LINKS["zero-delay"].up_kbps, LINKS["zero-delay"].rtt_ms) == (math.inf, 0)
    with pytest.raises(RequestError, match="Did you mean 'wifi'"):
        find("wify")


@pytest.mark.parametrize(
    ("name", "nj_per_bit", "base_mw", "promotion", "tail"),
    [
        ("lte", (438.39, 51.97), 1288.04, (1210.7, 260.1), (1060.0, 11576.0)),
        ("3g", (868.98, 122.12), 817.88, (659.4, 582.1), (601.3, 8088.2)),
        ("wifi", (283.17, 137.01), 132.86, (124.4, 79.1), (119.3, 238.1)),
    ],
)
def test_radio_energy_matches_the_published_tables(name, nj_per_bit, base_mw, promotion, tail):
    """Promotion and tail are (mW, ms): a first message wakes the radio, one right after its end does not."""
    meter, size = RadioMeter(find(name).radio), 10**6
    spent = []
    for start_s, direction in ((0.0, "up"), (2.0, "down")):
        spent.append(meter.add(Transfer(start_s, start_s, start_s + 2.0, start_s + 2.0, size, size, 0), direction))
    up, down = (8e6 * nj * 1e-9 + 2.0 * base_mw / 1e3 for nj in nj_per_bit)
    assert spent == pytest.approx([up + math.prod(promotion) / 1e6, down])
    assert meter.close(4.0 + 60.0) == pytest.approx(math.prod(tail) / 1e6)


def test_link_mapping_is_parsed_or_refused_with_all_faults():
    link = from_mapping(
        {"name": "mine", "up_kbps": 5, "down_kbps": "inf", "outages": {"windows_s": [[3, 4]], "period_s": 9}}
    )
    assert link == LinkProfile("mine", 5.0, math.inf, outages=Outages(((3.0, 4.0),), 9.0))
    with pytest.raises(RequestError) as refused:
        from_mapping({"name": "mine", "up_kbps": -5, "loss": 1, "rt_ms": 3, "outages": {"windows_s": [[4, 3]]}})
    for part in (
        "'mine'",
        "up_kbps",
        "-5",
        "loss",
        "did you mean 'rtt_ms'",
        "'down_kbps' is missing",
        "outage windows",
    ):
        assert part in str(refused.value)


@pytest.mark.parametrize(
    ("windows", "period"), [(((1, 1),), None), (((2, 3), (1, 4)), None), (((0, 5),), 5), (((4, 6),), 5)]
)
def test_impossible_outages_are_refused(windows, period):
    with pytest.raises(ValueError, match="outage windows"):
        Outages(windows, period)
