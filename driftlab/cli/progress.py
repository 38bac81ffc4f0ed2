"""Progress of a run: a bar with the time left on a terminal or in a notebook, elsewhere plain lines."""

from __future__ import annotations

import html
import math
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from driftlab.cli.output import count, format_duration, print_note
from driftlab.platform.lab.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.progress import Progress as Bars

PLAIN_INTERVAL_S = 10.0  # between plain lines within a cell
REDRAW_S = 0.2  # between two states of a bar in a notebook
MIN_SHARE = 0.05  # of all work that must be done before the time left is estimated


@contextmanager
def shown(*, lines: bool = True) -> Iterator[Progress]:
    """Yield the display for stderr: a bar on a terminal, else plain lines, or nothing without `lines`."""
    if not sys.stderr.isatty():
        yield Lines() if lines else Progress()
        return
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        yield Bar(bars)


class TimeLeft:
    """Estimate of the time left, from the speed since the first report, after the start of workers."""

    def __init__(self, of: float) -> None:
        self._of, self._done = of, 0.0
        self._first: tuple[float, float] | None = None
        self._now_s = 0.0

    def advanced(self, work: float, now_s: float) -> None:
        """Add completed work at a time."""
        self._done, self._now_s = self._done + work, now_s
        self._first = self._first or (self._done, now_s)

    @property
    def share(self) -> float:
        return min(1.0, self._done / self._of) if self._of else 1.0

    @property
    def left_s(self) -> float | None:
        """Return the estimated time left; None before `MIN_SHARE` of the work is done."""
        if self._first is None or self._done >= self._of:
            return None
        done, took_s = self._done - self._first[0], self._now_s - self._first[1]
        return None if done < MIN_SHARE * self._of else took_s * (self._of - self._done) / done


class TrainingStates:
    """States of trainings as text: step, loss, and time left by the speed since the first report."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[TimeLeft, int]] = {}

    def text(self, network: str, step: int, of: int, loss: float) -> str:
        """Return the state of a network's training."""
        left, before = self._known.get(network) or (TimeLeft(of), 0)
        left.advanced(step - before, time.monotonic())
        self._known[network] = left, step
        ends = "" if left.left_s is None else f", {_format_left(left.left_s)}"
        return f"{network}: step {step}/{of}, loss {loss:.3g}{ends}"


class Lines(Progress):
    """Plain lines: two per network, one per cell, and the progress every `PLAIN_INTERVAL_S`."""

    def __init__(self) -> None:
        self._start(0, 0.0)

    def _start(self, cells: int, work_s: float) -> None:
        """Start to count from 0; a notebook has one listener for all its runs."""
        self._cells, self._left, self._printed_s = cells, TimeLeft(work_s), time.monotonic()
        self._ended = self._announced = 0
        self._trainings = TrainingStates()

    def begins(self, cells: int, kept: int, work_s: float) -> None:
        self._start(cells, work_s)
        finished = f" ({kept} already finished)" if kept else ""
        print_note(f"{count(cells, 'cell')} to run{finished}")

    def repeats(self, cells: Sequence[str], reason: str) -> None:
        print_note(_repeated(cells, reason))

    def building(self, network: str, number: int, of: int) -> None:
        if number > self._announced:  # it is reported again when a cell waits for it
            self._announced = number
            print_note(f"network {number}/{of}: {network}")

    def training(self, network: str, step: int, of: int, loss: float) -> None:
        state = self._trainings.text(network, step, of, loss)
        if time.monotonic() - self._printed_s >= PLAIN_INTERVAL_S:
            self._printed_s = time.monotonic()
            print_note(state)

    def built(self, network: str, done: int, of: int) -> None:
        print_note(f"network {done}/{of} ready: {network}")

    def advanced(self, work_s: float) -> None:
        now_s = time.monotonic()
        self._left.advanced(work_s, now_s)
        if now_s - self._printed_s >= PLAIN_INTERVAL_S and (left_s := self._left.left_s) is not None:
            self._printed_s = now_s
            print_note(f"{self._left.share:.0%} done, {_format_left(left_s)}")

    def finished(self, cell: str, reason: str) -> None:
        self._ended += 1
        print_note(f"cell {self._ended}/{self._cells} {'FAILED: ' + reason if reason else 'done'}: {cell}")


class Bar(Progress):
    """A bar for the networks, then one for the cells."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._task = bars.add_task("networks", total=None, left="")
        self._cells = self._ended = 0
        self._of_s, self._left = 0.0, TimeLeft(0.0)
        self._trainings = TrainingStates()

    def begins(self, cells: int, kept: int, work_s: float) -> None:
        self._cells, self._of_s, self._left = cells, work_s, TimeLeft(work_s)

    def repeats(self, cells: Sequence[str], reason: str) -> None:
        self._bars.console.print(_repeated(cells, reason), highlight=False, markup=False)

    def building(self, network: str, number: int, of: int) -> None:
        self._bars.update(self._task, description=f"network {number}/{of}: {network}", total=of)

    def training(self, network: str, step: int, of: int, loss: float) -> None:
        self._bars.update(self._task, description=self._trainings.text(network, step, of, loss))

    def built(self, network: str, done: int, of: int) -> None:
        self._bars.update(self._task, completed=done)
        if done == of:
            self._bars.remove_task(self._task)
            self._task = self._bars.add_task(f"0/{self._cells} cells", total=self._of_s, left="")

    def advanced(self, work_s: float) -> None:
        self._left.advanced(work_s, time.monotonic())
        left_s = self._left.left_s
        self._bars.update(self._task, advance=work_s, left="" if left_s is None else _format_left(left_s))

    def finished(self, cell: str, reason: str) -> None:
        self._ended += 1
        self._bars.update(self._task, description=f"{self._ended}/{self._cells} cells")
        if reason:
            self._bars.console.print(f"FAILED {cell}: {reason}", style="red", highlight=False)


class NotebookBar(Progress):
    """A bar in the output of a notebook's cell: the networks, then the cells."""

    def __init__(self) -> None:
        self._of, self._ended = 0, 0
        self._left, self._trainings = TimeLeft(0.0), TrainingStates()
        self._handle: Any = None
        self._shown_s = -math.inf

    def begins(self, cells: int, kept: int, work_s: float) -> None:
        self._of, self._ended, self._handle = cells, 0, None  # each run has a separate bar
        self._left, self._trainings = TimeLeft(work_s), TrainingStates()
        self._show(f"{count(cells, 'cell')} to run", 0.0)

    def repeats(self, cells: Sequence[str], reason: str) -> None:
        print_note(_repeated(cells, reason))

    def building(self, network: str, number: int, of: int) -> None:
        self._show(f"network {number}/{of}: {network}", (number - 1) / of)

    def training(self, network: str, step: int, of: int, loss: float) -> None:
        self._show(self._trainings.text(network, step, of, loss), step / of)

    def built(self, network: str, done: int, of: int) -> None:
        self._show(f"network {done}/{of} ready: {network}", done / of)

    def advanced(self, work_s: float) -> None:
        self._left.advanced(work_s, time.monotonic())
        if time.monotonic() - self._shown_s >= REDRAW_S:
            self._show_cells()

    def finished(self, cell: str, reason: str) -> None:
        self._ended += 1
        if reason:
            print_note(f"FAILED {cell}: {reason}")
        self._show_cells()

    def _show_cells(self) -> None:
        left_s, all_ended = self._left.left_s, self._ended == self._of
        ends = "" if left_s is None or all_ended else f", {_format_left(left_s)}"
        self._show(f"{self._ended}/{count(self._of, 'cell')} done{ends}", 1.0 if all_ended else self._left.share)

    def _show(self, text: str, share: float) -> None:
        from IPython.display import display

        bar = f'<progress max="1" value="{share:.3f}" style="width: 16em" aria-label="progress"></progress>'
        content = {"text/html": f"{bar} {html.escape(text)}", "text/plain": text}
        self._shown_s = time.monotonic()
        if self._handle is None:
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)


def _format_left(seconds: float) -> str:
    return f"about {format_duration(seconds)} left"


def _repeated(cells: Sequence[str], reason: str) -> str:
    """Name the first repeated cell, the number of others, and the reason."""
    more = f" and {len(cells) - 1} more" if len(cells) > 1 else ""
    return f"runs again: {cells[0]}{more}: {reason}"
