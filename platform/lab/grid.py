"""Run the cells of a grid in parallel and record each at its end; a failed cell affects no other."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from driftlab.errors import BackendLost, DriftlabError, as_typed
from driftlab.platform.core.records import Rows
from driftlab.platform.lab.builds import settings_of
from driftlab.platform.lab.forecast import Meter, meters_of
from driftlab.platform.lab.parts import PartResult, joined, parts_of, setup_of
from driftlab.platform.lab.plan import Plan
from driftlab.platform.lab.progress import Progress
from driftlab.platform.lab.read import Experiment
from driftlab.platform.results.tables.origin import Origin
from driftlab.platform.sim.host import with_host
from driftlab.platform.sim.nodes.cell import place_cell, report_times
from driftlab.platform.sim.rows import failed_rows
from driftlab.platform.sim.runner import CellProgress, Runner
from driftlab.platform.sim.session import Backend, Job, NodeId, Session, describe
from driftlab.platform.sim.setting import Cell, WorkloadSetup, setup_key

log = logging.getLogger(__name__)
REPORT_S = 0.2  # real time of a step of a whole cell, below which the next steps are longer
DEVICES_AT_WORK = 1000  # in all cells that run at the same time: 1000 devices take about 5 GiB


@dataclass(frozen=True)
class Outcome:
    """Result of a grid: counts of cells, and the failed cells with reasons."""

    directory: Path
    done: int
    kept: int  # cells that an earlier run of this folder had finished
    failed: tuple[tuple[str, str], ...]  # cell, reason


def run_grid(experiment: Experiment, plan: Plan, backend: Backend, directory: Path, progress: Progress) -> Outcome:
    """Run every cell that the plan lists; the rows of a failed cell hold the reason."""
    todo, kept = plan.todo, len(plan.kept)
    for reason, again in plan.again.items():
        progress.repeats(again, reason)
    meters = meters_of(experiment, todo, progress)
    progress.begins(len(todo), kept, sum(meter.whole_s for meter in meters.values()))
    failed: tuple[tuple[str, str], ...] = ()
    if todo:
        work = GridContext(
            settings_of(experiment, backend, progress),
            plan.origins,
            backend,
            directory,
            progress,
            meters,
            threading.Semaphore(max(1, backend.whole_cells)),
        )
        failed = _run_cells(todo, work)
    return Outcome(directory, len(todo) - len(failed), kept, failed)


@dataclass(frozen=True)
class GridContext:
    """Settings, backend, folder and progress of a grid, shared by its cells."""

    settings: Mapping[str, WorkloadSetup]  # by workload, scaling member and seed
    origins: Mapping[str, Origin]  # by cell
    backend: Backend
    directory: Path
    progress: Progress
    meters: Mapping[str, Meter]  # by cell
    free: threading.Semaphore = field(default_factory=threading.Semaphore)  # processes for whole cells


class NotWrittenError(DriftlabError):
    """A cell is computed, and its tables could not be written."""


class WaitingCells:
    """Gives each thread the cells of one stream, one after another.

    The process that computes its whole cells has kept the stream's frames.
    """

    def __init__(self, cells: Sequence[Cell]) -> None:
        self._lock, self._own = threading.Lock(), dict[int, tuple[str, int]]()  # stream of each thread
        self._cells: dict[tuple[str, int], deque[Cell]] = {}  # by workload and seed
        for cell in cells:
            self._cells.setdefault((cell.workload, cell.seed), deque()).append(cell)

    def take(self) -> Cell:
        """Return a cell of this thread's stream, else of one that no thread has, else of the longest one."""
        with self._lock:
            stream = self._own.pop(threading.get_ident(), None)
            if stream not in self._cells:
                free = (one for one in self._cells if one not in self._own.values())
                stream = next(free, None) or max(self._cells, key=lambda one: len(self._cells[one]))
            self._own[threading.get_ident()] = stream
            cell = self._cells[stream].popleft()
            if not self._cells[stream]:
                del self._cells[stream]
            return cell


def _run_cells(cells: Sequence[Cell], context: GridContext) -> tuple[tuple[str, str], ...]:
    """Run cells in parallel, each in a thread that mostly waits for the backend; return failures."""
    failed = []
    for cell, reason in _ended(cells, context):
        context.progress.finished(cell.id, reason)
        if reason:
            failed.append((cell.id, reason))
    return tuple(failed)


def _ended(cells: Sequence[Cell], context: GridContext) -> Iterator[tuple[Cell, str]]:
    """Yield each cell as it ends; with concurrency 1 cells run in this thread and can be interrupted.

    Otherwise other threads record them, so that a process begins with its next cell at once.
    """
    if context.backend.concurrency == 1:
        yield from ((cell, _record(cell, *_run_cell(cell, context), context)) for cell in cells)
        return
    fleet = max(len(part.devices) for cell in cells for part in parts_of(cell)[:1])
    at_once = context.backend.whole_cells or min(context.backend.concurrency, max(1, DEVICES_AT_WORK // fleet))
    pool, tables = (ThreadPoolExecutor(at_once, thread_name_prefix=name) for name in ("cell", "tables"))
    waiting = WaitingCells(cells)

    def run_next() -> tuple[Cell, Future[str]]:
        cell = waiting.take()
        return cell, tables.submit(_record, cell, *_run_cell(cell, context), context)

    try:
        for future in as_completed([pool.submit(run_next) for _ in cells]):
            cell, recorded = future.result()
            yield cell, recorded.result()
    finally:
        for each in (pool, tables):
            each.shutdown(wait=False, cancel_futures=True)  # after an interrupt, closing the backend ends waiting cells


def _run_cell(cell: Cell, context: GridContext) -> tuple[Rows, str]:
    """Run one cell; return its rows, or none if its process has written them, and the reason of a failure."""
    setting = context.settings[setup_key(cell.workload, cell.system.scaling, cell.seed)]
    try:
        return _rows_of(cell, setting, context), ""
    except (KeyboardInterrupt, BackendLost):
        raise  # the run stops, or its backend is gone
    except NotWrittenError as error:
        return {}, str(error)
    except BaseException as error:  # a plug-in's sys.exit too fails only its cell; the others continue
        log.debug("cell %s failed", cell.id, exc_info=True)
        reason = str(error) if isinstance(error, DriftlabError) else describe(error)
        return failed_rows(cell, setting.experiment, reason), reason


def _rows_of(cell: Cell, setting: WorkloadSetup, context: GridContext) -> Rows:
    """Run one cell; the parts of a large fleet run in parallel if the backend computes whole cells."""
    parts, one_at_a_time = parts_of(cell), threading.Lock()
    if len(parts) == 1:
        return _run_part(cell, setting, context.meters[cell.id], context)[0]

    def meter(work_s: float) -> None:
        with one_at_a_time:
            context.meters[cell.id](work_s)

    def run(part: Cell, number: int) -> PartResult:
        return _run_part(part, setup_of(number, setting), meter, context)

    if not context.backend.whole_cells:
        return joined(cell, setting, [run(part, number) for number, part in enumerate(parts)])
    pool = ThreadPoolExecutor(context.backend.whole_cells, thread_name_prefix="part")
    try:
        return joined(cell, setting, list(pool.map(run, parts, itertools.count())))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _run_part(part: Cell, setting: WorkloadSetup, meter: Callable[[float], None], context: GridContext) -> PartResult:
    """Run a cell or a part of it, its nodes in the backend's processes or all of them in one process.

    The rows of a part are returned. The process of a whole cell may write its tables: a separate one of a recorder,
    which receives the rows from the driver, took 6 % of the time of cells of .4 s.
    """
    if not context.backend.whole_cells:
        with _session(context, part.id) as session:
            started_s = time.perf_counter()
            loop = Runner(part, setting, session, meter)
            loop.run()
            return with_host(loop.ledger.rows, started_s), [app.account for app in loop.apps.values()]
    times_s, progress = list(report_times(part, setting.window_s)), CellProgress(0.0, {})
    last = ("record", str(context.directory), context.origins[part.id]) if part.id in context.origins else ("rows",)
    with context.free, _session(context, part.id) as session:
        node = place_cell(session, part, setting)
        for job in _started_ahead(_calls(session, node, times_s, last)):
            if job.verb == "advance":
                before_s, progress = progress.time_s, session.result(job).facts
                meter((progress.time_s - before_s) * len(part.devices))
        with _writing(context) if job.verb == "record" else contextlib.nullcontext():
            return session.result(job).rows, list(progress.accounts.values())


def _calls(session: Session, node: NodeId, times_s: Sequence[float], last: Sequence[Any]) -> Iterator[Job]:
    """Start the calls of a whole cell: it advances to these times; the last call has another verb.

    A fast cell reports less often: twenty calls would take a tenth of the time of a cell of .4 s.
    """
    done, stride = 0, 1
    while done < len(times_s):
        done, began_s = min(done + stride, len(times_s)), time.monotonic()
        yield session.call(node, "advance", times_s[done - 1])
        stride *= 2 if time.monotonic() - began_s < REPORT_S else 1
    yield session.call(node, *last)


def _started_ahead(jobs: Iterator[Job]) -> Iterator[Job]:
    """Yield each job after the start of the next one: the process does not wait for the driver in between."""
    before = next(jobs)
    for job in jobs:
        yield before
        before = job
    yield before


def _record(cell: Cell, rows: Rows, reason: str, context: GridContext) -> str:
    """Write a cell's rows in a separate session, so that a retry only writes again.

    Return the reason of a failure.
    """
    if not rows:
        return reason
    recorder = NodeId("recorder", "recorder")
    try:
        with _writing(context), _session(context, f"{cell.id}/tables") as session:
            session.place(recorder, str(context.directory))
            session.result(session.call(recorder, "write", cell.id, rows, context.origins[cell.id]))
        return reason
    except NotWrittenError as error:
        return str(error)


@contextlib.contextmanager
def _writing(context: GridContext) -> Iterator[None]:
    """Name the next step after an error of writing tables."""
    try:
        yield
    except (KeyboardInterrupt, BackendLost):
        raise
    except Exception as error:
        raise NotWrittenError(
            f"its tables could not be written: {error}; make room or give access, then "
            f"{as_typed('--resume', context.directory)}"
        ) from error


@contextlib.contextmanager
def _session(context: GridContext, name: str) -> Iterator[Session]:
    """Open a session and close it at the end, also after an error."""
    session = context.backend.open(name)
    try:
        yield session
    finally:
        session.close()
