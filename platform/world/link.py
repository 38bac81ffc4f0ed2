"""Links between a device and a server: rate, delay, loss and outages, with a count of every byte.

A message occupies the link while its bits are sent and then propagates for half a round trip, during which the next
message can be sent. An infinite rate takes no time; a kilobit is 1000 bit. Measured propagation delays are replayed
message by message.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import simpy
from annotated_types import Ge, Le, Lt, MaxLen

from driftlab.errors import quoted, unknown_name
from driftlab.platform.world.clock import Clock
from driftlab.platform.world.profile import STRICT, parse

MAX_FLIPPED_BITS = 8
MTU_BYTES = 1500  # payload of an Ethernet frame, the size of a lost packet

Kbps = Annotated[float, Ge(1e-6)]
NotNegative = Annotated[float, Ge(0), Lt(math.inf)]
Window = tuple[Annotated[float, Ge(0)], float]
MAX_WINDOWS, MAX_FLIGHTS = 1000, 10_000
MAX_WALKED_PERIODS = 1000  # a transmission over more outage periods is computed in closed form


@dataclass(frozen=True)
class Outages:
    """Windows [start, stop) without transmission, repeated if there is a period."""

    __pydantic_config__: ClassVar = STRICT

    windows_s: Annotated[tuple[Window, ...], MaxLen(MAX_WINDOWS)] = ()
    period_s: Annotated[float, Ge(1e-3)] | None = None

    def __post_init__(self) -> None:
        """Refuse windows that overlap, are reversed, or leave no time for transmission."""
        edges = [edge for window in self.windows_s for edge in window]
        if edges != sorted(edges) or any(start == stop for start, stop in self.windows_s):
            raise ValueError(
                f"outage windows must be in order, apart and longer than 0 s, not {quoted(self.windows_s)}"
            )
        down_s = sum(stop - start for start, stop in self.windows_s)
        if self.windows_s and self.period_s is not None and (edges[-1] > self.period_s or down_s >= self.period_s):
            raise ValueError(
                f"outage windows {quoted(self.windows_s)} must fit into {self.period_s} s and leave time to send"
            )

    def finish_s(self, start_s: float, work_s: float) -> float:
        """Return the end of a transmission of `work_s`, which pauses during outages."""
        if self.period_s and self.windows_s:
            free_s = self.period_s - sum(stop - start for start, stop in self.windows_s)
            periods = math.floor(work_s / free_s) - 1
            if periods > MAX_WALKED_PERIODS:
                work_s, start_s = work_s - periods * free_s, start_s + periods * self.period_s
        for opens_s, closes_s in self._following(start_s):
            if start_s < opens_s and start_s + work_s <= opens_s:
                break
            work_s = max(0.0, work_s - max(0.0, opens_s - start_s))
            start_s = closes_s
        return start_s + work_s

    def _following(self, now_s: float) -> Iterator[tuple[float, float]]:
        """Yield the windows that end after now, in order."""
        period_s = self.period_s or 0.0
        first = max(0, math.floor(now_s / period_s) - 1) if period_s else 0  # one early: a quotient may round up
        for index in itertools.count(first) if period_s and self.windows_s else (0,):
            for opens_s, closes_s in self.windows_s:
                if index * period_s + closes_s > now_s:
                    yield index * period_s + opens_s, index * period_s + closes_s


@dataclass(frozen=True)
class Transfer:
    """The timing of one message on a link."""

    queued_s: float  # enters the queue of the link
    start_s: float  # first bit on the link
    sent_s: float  # last bit on the link, which is then free
    arrive_s: float  # at the receiver
    bytes: int
    wire_bytes: int  # including retransmissions
    retransmissions: int


class Link:
    """One direction of a link; messages are sent in the order of their requests.

    Lost packets are retransmitted at once, as with selective acknowledgement: they cost bytes, but no round trip.
    """

    def __init__(
        self,
        clock: Clock,
        rate_kbps: float,
        flights_s: Sequence[float],
        loss: float,
        outages: Outages,
        rng: np.random.Generator,
    ) -> None:
        self._clock = clock
        self._bits_per_s = rate_kbps * 1000
        self._flights_s, self._last_s = itertools.cycle(flights_s), 0.0
        self._loss = loss
        self._outages = outages
        self._rng = rng
        self._line = simpy.Resource(clock)

    def send(self, size_bytes: int) -> Generator[simpy.Event, Any, Transfer]:
        """Send a message of a size; use as `transfer = yield from link.send(n)`."""
        queued_s = self._clock.now
        with self._line.request() as turn:
            yield turn
            start_s = self._clock.now
            lost, lost_bytes = self._draw_losses(size_bytes)
            wire_bytes = size_bytes + lost_bytes
            done_s = self._outages.finish_s(start_s, wire_bytes * 8 / self._bits_per_s)
            yield self._clock.timeout(done_s - start_s)
            sent_s = self._clock.now
        yield self._clock.timeout(self._flight_s(sent_s))
        return Transfer(queued_s, start_s, sent_s, self._clock.now, size_bytes, wire_bytes, lost)

    def _flight_s(self, sent_s: float) -> float:
        """Return the propagation delay of a message; messages arrive in the order in which they were sent."""
        flight_s = next(self._flights_s)
        if self._last_s > sent_s + flight_s:
            flight_s = self._last_s - sent_s
        self._last_s = sent_s + flight_s
        return flight_s

    def _draw_losses(self, size_bytes: int) -> tuple[int, int]:
        """Draw the number of retransmitted packets, and their bytes."""
        if self._loss == 0:
            return 0, 0
        full, rest_bytes = divmod(size_bytes, MTU_BYTES)
        lost = int(self._rng.negative_binomial(full, 1 - self._loss)) if full else 0
        lost_rest = int(self._rng.negative_binomial(1, 1 - self._loss)) if rest_bytes else 0
        return lost + lost_rest, lost * MTU_BYTES + lost_rest * rest_bytes


@dataclass(frozen=True)
class Radio:
    """Energy model of a device's radio: per byte, while active, per wake-up, and in the tail."""

    __pydantic_config__: ClassVar = STRICT

    up_j_per_byte: NotNegative = 0.0
    down_j_per_byte: NotNegative = 0.0
    active_w: NotNegative = 0.0  # while a message occupies the link
    wake_j: NotNegative = 0.0
    tail_w: NotNegative = 0.0  # awake without a message
    tail_s: Annotated[float, Ge(0), Lt(math.inf)] = 0.0  # duration of the tail after a message


class RadioMeter:
    """The energy of one device's radio, message by message, in the order in which they leave the link."""

    def __init__(self, radio: Radio) -> None:
        self.radio = radio
        self._awake_until_s: float | None = None  # end of the last message

    def add(self, transfer: Transfer, direction: str) -> float:
        """Return the energy of a message: its bytes, its time on the link, and the tail and wake-up before it.

        The tail is the time for which the radio stays awake after the previous message; a later message wakes it up.
        """
        radio, active_s = self.radio, transfer.sent_s - transfer.start_s
        per_byte = radio.up_j_per_byte if direction == "up" else radio.down_j_per_byte
        before_s = self._awake_until_s
        waited_s = math.inf if before_s is None else max(0.0, transfer.start_s - before_s)
        tail_s = 0.0 if before_s is None else min(waited_s, radio.tail_s)
        wake_j = radio.wake_j if waited_s > radio.tail_s else 0.0
        self._awake_until_s = max(transfer.sent_s, before_s or 0.0)
        return transfer.wire_bytes * per_byte + active_s * radio.active_w + tail_s * radio.tail_w + wake_j

    def close(self, stop_s: float) -> float:
        """Return the energy of the tail after the last message, up to the end of the session."""
        if self._awake_until_s is None:
            return 0.0
        return min(max(0.0, stop_s - self._awake_until_s), self.radio.tail_s) * self.radio.tail_w


@dataclass(frozen=True)
class LinkProfile:
    """A link in both directions; up is from the device to the server."""

    __pydantic_config__: ClassVar = STRICT

    name: str
    up_kbps: Kbps
    down_kbps: Kbps
    rtt_ms: Annotated[float, Ge(0)] = 0.0
    loss: Annotated[float, Ge(0), Lt(1)] = 0.0  # share of packets
    damage_prob: Annotated[float, Ge(0), Le(1)] = 0.0  # that a message arrives truncated or with flipped bits
    outages: Outages = Outages()
    radio: Radio = Radio()  # by default without energy
    down_flights_s: Annotated[tuple[NotNegative, ...], MaxLen(MAX_FLIGHTS)] = ()  # propagation delays of
    # consecutive messages, repeated cyclically; none: half a round trip each

    def up(self, clock: Clock, rng: np.random.Generator) -> Link:
        """Return the link to the server."""
        return Link(clock, self.up_kbps, (self.rtt_ms / 2000,), self.loss, self.outages, rng)

    def down(self, clock: Clock, rng: np.random.Generator) -> Link:
        """Return the link to the device."""
        flights_s = self.down_flights_s or (self.rtt_ms / 2000,)
        return Link(clock, self.down_kbps, flights_s, self.loss, self.outages, rng)


# Power models of phones measured in commercial networks (Huang et al., MobiSys 2012, tables 3 and 4): nJ per bit in
# either direction, watts while carrying, promotion from idle, and the tail of the radio's timers.
LTE_RADIO = Radio(8 * 438.39e-9, 8 * 51.97e-9, 1.28804, wake_j=1.2107 * 0.2601, tail_w=1.0600, tail_s=11.576)
UMTS_RADIO = Radio(8 * 868.98e-9, 8 * 122.12e-9, 0.81788, wake_j=0.6594 * 0.5821, tail_w=0.6013, tail_s=8.0882)
WIFI_RADIO = Radio(8 * 283.17e-9, 8 * 137.01e-9, 0.13286, wake_j=0.1244 * 0.0791, tail_w=0.1193, tail_s=0.2381)

LINKS: Mapping[str, LinkProfile] = {
    profile.name: profile
    for profile in (
        LinkProfile("zero-delay", math.inf, math.inf),  # device and server on one computer
        LinkProfile("ethernet", 1_000_000, 1_000_000, rtt_ms=0.5),  # 1000BASE-T within one site
        LinkProfile("wifi", 33_000, 40_000, rtt_ms=2, radio=WIFI_RADIO),  # "Wi-Fi" of Apple's Network Link Conditioner
        LinkProfile("lte", 12_000, 12_000, rtt_ms=70, radio=LTE_RADIO),  # "LTE" of WebPageTest's connectivity profiles
        LinkProfile("3g", 768, 1_600, rtt_ms=300, radio=UMTS_RADIO),  # "3G" of WebPageTest's connectivity profiles
        # Not measured: an LTE cell at its busy hour, with an outage of 4 s in every minute.
        LinkProfile(
            "congested", 500, 1_000, rtt_ms=200, loss=0.02, outages=Outages(((20, 24),), period_s=60), radio=LTE_RADIO
        ),
    )
}


def find(name: str) -> LinkProfile:
    """Return a preset by name."""
    if name not in LINKS:
        raise unknown_name("link", name, LINKS)
    return LINKS[name]


def from_mapping(given: Mapping[str, Any]) -> LinkProfile:
    """Parse the link of a spec."""
    return parse(LinkProfile, "link", given)


@dataclass(frozen=True)
class MessageDamage:
    """Corruption of a message: truncated, or with flipped bits; `seed` determines the positions."""

    kind: Literal["cut", "bits"]
    seed: int

    def of(self, message: bytes) -> bytes:
        """Return the corrupted message, which differs from the original unless that is empty."""
        if not message:
            return message
        rng = np.random.default_rng(self.seed)
        if self.kind == "cut":
            return message[: int(rng.integers(len(message)))]
        bits = np.unpackbits(np.frombuffer(message, dtype=np.uint8))
        bits[rng.choice(len(bits), size=int(rng.integers(1, MAX_FLIPPED_BITS + 1)), replace=False)] ^= 1
        return np.packbits(bits).tobytes()


def draw_damage(rng: np.random.Generator, share: float) -> MessageDamage | None:
    """Draw the corruption of the next message, None for none; a share of 0 draws no random number."""
    if share == 0 or rng.random() >= share:
        return None
    return MessageDamage("cut" if rng.random() < 0.5 else "bits", int(rng.integers(2**32)))


def damaged(message: bytes, damage: MessageDamage | None) -> bytes:
    """Return the message as it is received."""
    return message if damage is None else damage.of(message)
