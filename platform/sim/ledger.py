"""The accounts from which a cell's rows are computed, in the order of virtual time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from driftlab.platform.core.records import Columns, InferenceReport, Rows
from driftlab.platform.world.link import Transfer

PURPOSES = ("inference", "training", "labelling", "tracking", "coding", "patching", "paging", "radio")


@dataclass
class Account:
    """Sums over one device, or over all devices of a cell."""

    frames: int = 0
    processed: int = 0
    busy_s: float = 0.0
    joules: dict[str, float] = field(default_factory=dict)  # by purpose
    memory_bytes: int = 0  # peak of training on the stream
    scored: int = 0
    frame_scores: float = 0.0
    window_scores: float = 0.0
    live_scored: int = 0
    live_scores: float = 0.0
    up_bytes: int = 0
    down_bytes: int = 0
    updates: int = 0
    counts: Any = None  # of the task, which can score their sum; None where no frame was scored
    by_class: Any = None  # truth, predictions and hits of each class, where the task predicts classes

    def watched(self, seen: InferenceReport) -> None:
        """Add one window."""
        self.frames += seen.frames
        self.processed += seen.processed
        self.busy_s += seen.busy_s
        for purpose, joules in seen.joules.items():
            self.spend(purpose, joules)
        self.memory_bytes = max(self.memory_bytes, seen.memory_bytes)
        self.scored += seen.scored
        self.frame_scores += seen.frame_score_sum
        self.window_scores += seen.window_score_sum
        self.live_scored += seen.live_scored
        self.live_scores += seen.live_score_sum
        self.counts = _sum(self.counts, seen.counts)
        self.by_class = _sum(self.by_class, seen.by_class)

    def spend(self, purpose: str, joules: float) -> None:
        """Add energy for a purpose."""
        self.joules[purpose] = self.joules.get(purpose, 0.0) + joules

    @property
    def energy_j(self) -> float:
        """Return the energy for all purposes."""
        return sum(self.joules.get(purpose, 0.0) for purpose in PURPOSES)

    def sent(self, direction: str, transfer: Transfer) -> None:
        """Add one message."""
        if direction == "up":
            self.up_bytes += transfer.wire_bytes
        else:
            self.down_bytes += transfer.wire_bytes

    @property
    def score(self) -> float | None:
        """Return the mean windowed score; None where no frame was scored."""
        return self.window_scores / self.scored if self.scored else None

    @property
    def score_live(self) -> float | None:
        """Return the mean windowed score of live predictions; None where no frame has a truth."""
        return self.live_scores / self.live_scored if self.live_scored else None

    @property
    def score_frame(self) -> float | None:
        return self.frame_scores / self.scored if self.scored else None


def total(accounts: Sequence[Account]) -> Account:
    """Sum accounts of any tasks; their counts are left out, as only counts of one task can be added."""
    whole = Account()
    for account in accounts:
        for field_ in fields(Account):
            if field_.name in ("counts", "by_class", "joules"):
                continue
            mine, theirs = getattr(whole, field_.name), getattr(account, field_.name)
            setattr(whole, field_.name, _sum(mine, theirs))
        for purpose, joules in account.joules.items():
            whole.spend(purpose, joules)
    return whole


def _sum(mine: Any, theirs: Any) -> Any:
    """Add two sums, either of which may be None."""
    return theirs if mine is None else mine if theirs is None else mine + theirs


@dataclass
class Ledger:
    """Collects every row of a cell."""

    _chunks: dict[str, list[Columns]] = field(default_factory=lambda: defaultdict(list))

    def add(self, table: str, columns: Mapping[str, Any]) -> None:
        """Add one chunk; a single row is a chunk of one-element lists."""
        self._chunks[table].append(columns)

    def row(self, table: str, **values: Any) -> None:
        """Add one row."""
        self.add(table, {name: [value] for name, value in values.items()})

    def take(self, rows: Rows) -> None:
        """Add the rows of a node."""
        for table, chunks in rows.items():
            for columns in chunks:
                self.add(table, columns)

    @property
    def rows(self) -> Rows:
        return dict(self._chunks)
