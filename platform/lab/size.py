"""Count the size of a run before it starts; refuse one beyond the limits, estimate its cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from driftlab.errors import RequestError, quoted
from driftlab.platform.lab.network_time import COUNTED

if TYPE_CHECKING:
    from driftlab.platform.lab.read import Experiment
from driftlab.platform.core.spec import WorkloadPart

MAX_CELLS = 100_000
MAX_DEVICES = 1_000_000  # in all cells together
MAX_FRAMES = 10**9  # on all devices together: at 3 ms each, 35 days
MAX_TICKS = 1_000_000  # of traces of applications, which are drawn before a run begins
MAX_SNAPSHOTS = 100_000  # in the report, from all cells
MAX_STEPS = 10**7  # of training before the run
MAX_PICTURE_PX = 2**22  # 2048 x 2048
MAX_BATCH_PX = 2**24  # pixels in one training step
CELL_BYTES, FRAME_BYTES = 150_000, 30  # on disk; the first as measured for cells of 16 frames
DEVICE_BYTES, COPIES = 600_000, 8  # in memory, for a device; copies of its network there, at the learner and the server
OTHER_PARAMETERS = 150_000  # of a network that is not counted in `network_time`
PROCESS_BYTES = 500_000_000  # of Python and torch before any work
BATCH_PX_BYTES = 600  # that training keeps for a pixel of a step
FRAME_S, FRAME_PX_S, STEP_PX_S = (
    6e-4,
    4e-7,
    5e-7,
)  # on one core, for a frame, and a pixel of a frame and of a training step
TOLD_S, TOLD_BYTES = 6 * 3600.0, 8 * 2**30  # estimates are announced from here on


@dataclass(frozen=True)
class RunSize:
    """Counts of a run over its whole grid."""

    cells: int
    devices: int  # in all cells
    fleet: int  # the most devices of one cell
    device_bytes: float  # in memory
    frames: float
    frame_px: float  # frames x their pixels
    ticks: float
    snapshots: int
    snapshot_bytes: float
    steps: int
    step_px: float  # steps x pixels of their pictures
    largest_px: int
    batch_px: int

    @property
    def seconds(self) -> float:
        """Estimate the time on one core, without training during the run, which depends on the systems."""
        return frame_seconds(self.frames, self.frame_px) + self.step_px * STEP_PX_S

    @property
    def memory_bytes(self) -> float:
        return PROCESS_BYTES + self.fleet * self.device_bytes + self.batch_px * BATCH_PX_BYTES

    @property
    def disk_bytes(self) -> float:
        return self.cells * CELL_BYTES + self.frames * FRAME_BYTES + self.snapshot_bytes

    def __str__(self) -> str:
        return (
            f"at least {_hours(self.seconds)} on one core, {self.memory_bytes / 2**30:.1f} GiB of memory and "
            f"{self.disk_bytes / 2**30:.1f} GiB of disk"
        )


def frame_seconds(frames: float, pixels: float) -> float:
    """Estimate the inference time on one core for a number of frames and their total pixels."""
    return frames * FRAME_S + pixels * FRAME_PX_S


def size_of(experiment: Experiment) -> RunSize:
    """Count cells, devices, frames and training steps of a valid experiment."""
    rows = len(experiment.systems) + (4 if experiment.bounds else 0)
    per_workload = len(experiment.seeds) * rows
    devices = [sum(part.count for part in fleet.devices) for fleet in experiment.fleets]
    lengths = [(part.duration_s or 0.0, max(1, len(part.apps)), part) for part in experiment.workloads]
    cells = per_workload * len(devices) * len(lengths)
    shown = [(s * apps * part.fps, part.height * part.width) for s, apps, part in lengths if part.run_networks]
    streams = per_workload * sum(devices)
    traces = len(experiment.seeds) * sum(devices)
    snapshots = cells * experiment.snapshots
    largest_px = max(part.height * part.width for part in experiment.workloads)
    networks = len(lengths) * (len(experiment.seeds) if experiment.student.per_seed else 1)
    student, teacher = experiment.student, experiment.teacher
    taught = teacher.pretrain_steps if teacher.kind == "network" else 0
    steps = networks * student.pretrain_steps + len(lengths) * taught
    batch = max([student.pretrain_batch, teacher.pretrain_batch if taught else 1, *_batches(experiment)])
    return RunSize(
        cells=cells,
        devices=per_workload * sum(devices) * len(lengths),
        fleet=max(devices),
        device_bytes=DEVICE_BYTES + COPIES * 4.0 * _parameters(experiment.student.network),
        frames=streams * sum(frames for frames, _ in shown),
        frame_px=streams * sum(frames * pixels for frames, pixels in shown),
        ticks=traces * sum(_ticks(part) for part in experiment.workloads),
        snapshots=snapshots,
        snapshot_bytes=snapshots * 3.0 * largest_px,
        steps=steps,
        step_px=float(steps) * max(student.pretrain_batch, teacher.pretrain_batch) * largest_px,
        largest_px=largest_px,
        batch_px=batch * largest_px,
    )


def size_faults(size: RunSize) -> Iterator[str]:
    """Yield a fault for every count above its limit."""
    bounds = (
        ("cells (systems x workloads x fleets x seeds)", size.cells, MAX_CELLS),
        ("devices (cells x devices)", size.devices, MAX_DEVICES),
        ("frames (cells x devices x applications x duration_s x fps)", size.frames, MAX_FRAMES),
        ("ticks of churn (seeds x devices x duration_s / tick_s)", size.ticks, MAX_TICKS),
        ("snapshots (cells x snapshots)", size.snapshots, MAX_SNAPSHOTS),
        ("training steps (pretrain_steps x networks)", size.steps, MAX_STEPS),
        ("pixels in a picture (height x width)", size.largest_px, MAX_PICTURE_PX),
        ("pixels in a training step (batch x height x width)", size.batch_px, MAX_BATCH_PX),
    )
    for what, count, most in bounds:
        if count > most:
            yield f"the run has {count:.6g} {what}, allowed are {most:,}; it would take {size}"


def announcement(experiment: Experiment) -> str:
    """Return the estimated cost of a large run; empty below the thresholds."""
    size = size_of(experiment)
    large = size.seconds > TOLD_S or max(size.memory_bytes, size.disk_bytes) > TOLD_BYTES
    return f"A large run: {size}." if large else ""


def _parameters(network: str) -> int:
    """Return the number of weights of a network, without building it."""
    return COUNTED[network][1] if network in COUNTED else OTHER_PARAMETERS


def _ticks(workload: WorkloadPart) -> float:
    if workload.churn is None:
        return 0.0
    given = workload.churn.get("tick_s", 1.0)
    if not isinstance(given, int | float) or not given > 0:
        raise RequestError(f"churn.tick_s is {quoted(given)}: give seconds above 0")
    return (workload.duration_s or 0.0) / given


def _batches(experiment: Experiment) -> Iterator[int]:
    """Yield the batch sizes in the parameters of members."""
    for part in experiment.systems:
        for slot in (part.adaptation, part.scaling):
            yield from (value for key in ("batch", "stream_batch") if isinstance(value := slot.get(key), int))


def _hours(seconds: float) -> str:
    if seconds > 172_800:
        return f"{seconds / 86400:.3g} days"
    return f"{seconds / 3600:.2g} hours" if seconds > 3600 else f"{max(1, round(seconds / 60))} minutes"
