"""Shows how far a run is: a bar with an estimate on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from driftlab.cli.output import remark
from driftlab.platform.grid.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.progress import Progress as Bars

PLAIN_EVERY_S = 10.0  # how often plain lines tell of progress between cells


@contextmanager
def shown() -> Iterator[Progress]:
    """Open the display that fits where the output goes."""
    if not sys.stderr.isatty():
        yield Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        yield Bar(bars)


class Lines(Progress):
    """Two lines per network, one per cell, and now and then how far it is."""

    def __init__(self) -> None:
        self._started = self._spoke = time.monotonic()
        self._cells = self._ended = self._named = 0
        self._virtual_s = self._of_s = 0.0

    def begins(self, cells: int, kept: int, virtual_s: float) -> None:
        self._cells, self._of_s = cells, virtual_s
        kept_text = f" ({kept} already there)" if kept else ""
        remark(f"{cells} cell{'' if cells == 1 else 's'} to run{kept_text}")

    def repeats(self, cells: Sequence[str], reason: str) -> None:
        remark(_again(cells, reason))

    def building(self, network: str, number: int, of: int) -> None:
        if number > self._named:  # it is told again when it is waited for
            self._named = number
            remark(f"network {number}/{of}: {network}")

    def built(self, network: str, done: int, of: int) -> None:
        remark(f"network {done}/{of} ready: {network}")
        self._started = time.monotonic()

    def advanced(self, virtual_s: float) -> None:
        self._virtual_s += virtual_s
        now = time.monotonic()
        if now - self._spoke >= PLAIN_EVERY_S and 0 < self._virtual_s < self._of_s:
            self._spoke = now
            left_s = (now - self._started) * (self._of_s / self._virtual_s - 1)
            remark(f"{self._virtual_s / self._of_s:.0%} done, about {left_s:.0f} s left")

    def finished(self, cell: str, reason: str) -> None:
        self._ended += 1
        remark(f"cell {self._ended}/{self._cells} {'FAILED: ' + reason if reason else 'done'}: {cell}")


class Bar(Progress):
    """One bar for the networks, one for the cells."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._task = bars.add_task("networks", total=None)
        self._cells = self._ended = 0
        self._of_s = 0.0

    def begins(self, cells: int, kept: int, virtual_s: float) -> None:
        self._cells, self._of_s = cells, virtual_s

    def repeats(self, cells: Sequence[str], reason: str) -> None:
        self._bars.console.print(_again(cells, reason), highlight=False, markup=False)

    def building(self, network: str, number: int, of: int) -> None:
        self._bars.update(self._task, description=f"network {number}/{of}: {network}", total=of)

    def built(self, network: str, done: int, of: int) -> None:
        self._bars.update(self._task, completed=done)
        if done == of:
            self._bars.remove_task(self._task)
            self._task = self._bars.add_task(f"0/{self._cells} cells", total=self._of_s)

    def advanced(self, virtual_s: float) -> None:
        self._bars.advance(self._task, virtual_s)

    def finished(self, cell: str, reason: str) -> None:
        self._ended += 1
        self._bars.update(self._task, description=f"{self._ended}/{self._cells} cells")
        if reason:
            self._bars.console.print(f"FAILED {cell}: {reason}", style="red", highlight=False)


def _again(cells: Sequence[str], reason: str) -> str:
    """Say which cells run again, and why."""
    more = f" and {len(cells) - 1} more" if len(cells) > 1 else ""
    return f"runs again: {cells[0]}{more}: {reason}"
