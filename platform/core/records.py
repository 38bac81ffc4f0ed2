"""The records that nodes, backends and tables exchange."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from driftlab.errors import RunError

# Beginnings of the reasons that the tables give for a member's failure, in contrast to training that it skips.
LEARNING_FAILED, NO_END = "learning failed", "learning did not end"
PREDICTION_FAILED = "prediction failed, and the network predicts without the member"
Weights = Mapping[str, npt.NDArray[Any]]  # a state dict as plain arrays: shared memory can carry it without a copy
Columns = Mapping[str, Any]  # column -> values of one chunk; a scalar is the value of every row
Rows = Mapping[str, Sequence[Columns]]  # table -> chunks
Resource = Literal["accelerator", "cpu", "storage", "link"]
LayerPasses = tuple[str, float, float]  # a layer, the frames of a batch, and how often it ran
Share = float | Mapping[Resource, float]  # of a processor; a number holds for all its resources
SHARE_TOLERANCE = 1e-6  # of the sum of shares


@dataclass(frozen=True)
class Reply:
    """The result of a node's verb: facts for the simulator, table rows, a payload for other nodes.

    Facts and rows are small and travel to the driver; the payload (frames, weights, deltas) never does.
    """

    facts: Any = None
    rows: Rows = field(default_factory=dict)
    payload: Any = None


@dataclass(frozen=True)
class LayerCost:
    """Computation and traffic of one leaf layer for one input."""

    name: str
    kind: str
    macs: int
    parameters: int
    input_bytes: int
    output_bytes: int
    weight_bytes: int

    def of_batch(self, frames: int) -> LayerCost:
        """Return the layer for a batch of inputs; weights are read once."""
        scaled = {name: frames * getattr(self, name) for name in ("macs", "input_bytes", "output_bytes")}
        return replace(self, **scaled)


@dataclass(frozen=True)
class ModelCost:
    """The static cost of a network for one input of a given size."""

    macs: int
    parameters: int
    weight_bytes: int
    activation_bytes: int
    layers: tuple[LayerCost, ...] = ()
    kernel_bytes: int = 0  # of its multi-dimensional weights, which networks of other widths can share


@dataclass(frozen=True)
class Passes:
    """The computation done with a network, in counts that depend on the data and never on the host."""

    forward: tuple[int, ...] = ()  # frames of each batch that went forward
    backward: tuple[int, ...] = ()  # frames of each batch whose gradients came back
    trained: tuple[str, ...] | None = None  # modules whose weights were trained; None: all of them
    kept_bytes: int = 0  # held besides the network and its activations: optimiser state, copies, samples
    shares: tuple[float, ...] | None = None  # of each trained module's weights that were trained; None: all
    others: tuple[LayerCost, ...] = ()  # layers of other networks and operations besides the network, each run once
    beyond: tuple[LayerPasses, ...] = ()  # found by the lab: layers that ran more often than these passes state

    def __post_init__(self) -> None:
        """Refuse counts that no computation can have."""
        for name in ("forward", "backward"):
            if not isinstance(given := getattr(self, name), tuple):
                raise ValueError(f"'{name}' is {given!r}, must be a tuple with the frames of each batch, such as (16,)")
        if self.shares is not None and len(self.shares) != len(self.trained or ()):
            raise ValueError(f"there is a share for each trained module, not {self.shares} for {self.trained}")
        if any(frames < 1 for frames in (*self.forward, *self.backward)) or self.kept_bytes < 0:
            raise ValueError(f"passes take batches of at least one frame and keep at least 0 bytes, not {self}")


@dataclass(frozen=True)
class TaskCost:
    """The resources that a task takes without co-running tasks."""

    seconds: Mapping[Resource, float] = field(default_factory=dict)  # per resource; most tasks use one
    memory_bytes: int = 0
    joules: float = 0.0

    @property
    def isolated_s(self) -> float:
        """Return the time on an otherwise idle processor; resources are used sequentially."""
        return sum(self.seconds.values())


@dataclass(frozen=True)
class Sensitivity:
    """How much other programs slow a network besides taking the CPU.

    The values are shares of its time, added at full load.
    """

    cpu: float = 0.0  # if they compute all the time
    memory: float = 0.0  # if they use all the memory


@dataclass(frozen=True)
class Variant:
    """A network that an application can run, with its accuracy and its cost on the device."""

    name: str
    accuracy: float | None  # validation accuracy, a fraction; None or NaN: not measured
    memory_bytes: int  # memory that a scheduler allocates: the weights, or a measured size
    latency_s: float  # per frame, on the whole processor
    energy_j: float | None = None  # per frame
    macs: int | None = None
    test_accuracy: float | None = None  # None: only `accuracy` is known
    kernel_bytes: int | None = None  # of the weights, as in ModelCost; None: unknown, from a measured profile
    parts: tuple[tuple[str, int], ...] = ()  # name and bytes of its shared parts; empty: it shares none
    weight_bytes: int | None = None  # that a switch reads from storage; None: `memory_bytes`
    sensitivity: Sensitivity = Sensitivity()  # under the law `operators` of a load

    @property
    def stored_bytes(self) -> int:
        """Return the bytes that a switch reads from storage."""
        return self.memory_bytes if self.weight_bytes is None else self.weight_bytes

    def __post_init__(self) -> None:
        """Convert NaN to None where a value may be missing, and refuse values that no scheduler can compare."""
        for name in ("accuracy", "energy_j", "test_accuracy"):
            if (value := getattr(self, name)) is not None and math.isnan(value):
                object.__setattr__(self, name, None)
        if not (0 <= self.latency_s < math.inf and self.memory_bytes >= 0):
            needs = f"{self.latency_s} s per frame and {self.memory_bytes} bytes"
            raise RunError(f"The network '{self.name}' takes {needs}; both must be finite and at least 0.")

    @property
    def reported_accuracy(self) -> float | None:
        """Return the test accuracy, or the validation accuracy where none was measured."""
        return self.accuracy if self.test_accuracy is None else self.test_accuracy


# Other programs get at most a fixed share, all programs are served in turn, or, with a fixed share, they also slow each
# operator by its sensitivity.
CpuContention = Literal["shared", "queued", "operators"]


@dataclass(frozen=True)
class LoadReading:
    """The load of a device at a time, as read by its sensors."""

    time_s: float
    cpu: float  # share in use by other programs, 0 to 1
    memory_bytes: int  # free
    clock: float = 1.0  # speed relative to the nominal one
    temperature_c: float | None = None  # None: not sensed
    battery: float | None = None  # charge, a fraction; None: no battery
    contention: CpuContention = "shared"  # how the CPU load slows the device
    memory: float = 0.0  # share in use by other programs, 0 to 1
    gpu: float | None = None  # share in use by other programs; None: no GPU


@dataclass(frozen=True)
class TimedInference:
    """The latency of a network that an application has measured, with the load meanwhile."""

    network: str
    idle_s: float  # on the idle processor, at its share
    taken_s: float
    reading: LoadReading


@dataclass(frozen=True)
class Captured:
    """A device has captured the frames of one window."""

    frames: int
    has_truth: bool


@dataclass(frozen=True)
class Uploaded:
    """A device has packed sampled frames for the link."""

    frames: int  # on the link
    bytes: int  # on the link, without the encoder's metadata
    gross_bytes: int  # including the encoder's metadata, which is not sent
    newest_s: float
    host_seconds: float  # to encode them


@dataclass(frozen=True)
class Labelled:
    """A teacher has labelled a batch."""

    frames: int


@dataclass(frozen=True)
class Packed:
    """A teacher has packed labels for the link."""

    bytes: int


@dataclass(frozen=True)
class Stored:
    """A learner has put labelled frames into its buffer."""

    frames: int
    buffered: int
    newest_s: float
    usable_s: float | None  # time of the newest sample in the buffer with a usable label, if any
    phis: tuple[float, ...]  # φ-score between each sample and the next
    unlisted_labels: int = 0  # labels outside the class list
    domain: int | None = None  # of the newest sample, where the experiment labels domains


@dataclass(frozen=True)
class Trained:
    """A learner has finished a phase and encoded the update."""

    frames: int  # in the buffer
    iterations: int  # training steps
    bytes: int
    values: int  # number of weights in the update
    loss_first: float | None
    loss_last: float | None
    score: float | None  # on the training samples, where the phase requires it
    skipped: str  # why there is no update; empty when there is one
    host_seconds: float
    clamped: int = 0  # values clamped to the range of the update's number format
    passes: Passes = Passes()
    surgery: tuple[LayerCost, ...] = ()  # operations on weights by which a device of another family copy follows
    selection: Passes | None = None  # those that selected the channels; None: the network is not cut for the samples


@dataclass(frozen=True)
class PhaseCheck:
    """The accuracy of a phase's network before and after it: by the truth, and by monitors without labels."""

    true: tuple[float | None, float | None]  # on later frames of the domain
    confident: tuple[float | None, float | None] = (None, None)  # share of confident predictions on the samples
    agreeing: tuple[float | None, float | None] = (None, None)  # by the agreement under dropout, likewise


@dataclass(frozen=True)
class Applied:
    """An application has applied an update or labels, or refused them with a reason."""

    version: int  # of the newest model
    accepted: bool
    reason: str = ""
    unlisted_labels: int | None = None  # labels outside the class list


@dataclass(frozen=True)
class Received:
    """A learner or a teacher has decoded samples that came over the link."""

    frames: int
    refused: str = ""  # why the learner cannot decode them


@dataclass(frozen=True)
class TrialScores:
    """A learner has tried several phases on a part of its samples and scored each on the rest."""

    before: float | None  # score of the current network, a fraction
    after: tuple[float | None, ...]  # score after each phase
    passes: tuple[Passes, ...]  # of each trial, scoring included
    scoring_passes: Passes  # of scoring the current network
    initial_scores: tuple[float | None, ...] = ()  # score before each phase, where it begins with another network
    fixed_passes: tuple[Passes, ...] = ()  # the part of each `passes` that is the same for any number of steps


@dataclass(frozen=True)
class SampleDescription:
    """A learner has scored its network on its newest samples, and described them."""

    accuracy: float | None  # None: it has no labels
    signature: tuple[float, ...]  # mean feature under the network as built
    passes: Passes


@dataclass(frozen=True)
class RecallResult:
    """A learner has compared its network with stored ones on its newest samples."""

    accuracy: float  # of the network that it continues
    resumed_network: int | None  # number of the stored network that it continues; None: the current one
    passes: Passes


@dataclass(frozen=True)
class AccuracyEstimates:
    """A learner has estimated the accuracy of each network of its family, from the smallest on."""

    sizes: tuple[float, ...]  # parameters, as a share of the whole network's
    before: tuple[float, ...]  # accuracy as the network would be cut now
    after: tuple[float, ...]  # and after a phase
    passes: Passes  # of estimating
    phase_passes: Passes  # of training, as expected


@dataclass(frozen=True, eq=False)
class InferenceReport:
    """An application has run its model over a segment of its stream."""

    frames: int
    processed: int
    busy_s: float
    joules: Mapping[str, float]  # by purpose
    scored: int  # frames with truth
    frame_score_sum: float
    window_score_sum: float
    counts: npt.NDArray[np.int64] | None  # of the task over all frames; None where no frame was scored
    memory_bytes: int = 0  # peak of training on the stream
    by_class: npt.NDArray[np.int64] | None = None  # truth, predictions and hits of each class; None: not counted so
    confidence: float | None = None  # mean of the newest predictions; None: not requested, or no predictions
    live_scored: int = 0  # frames with truth, those before the first prediction included
    live_score_sum: float = 0.0  # over these


@dataclass(frozen=True)
class StreamStatistics:
    """An application has summarised its frames since the last request."""

    frames: int
    entropy: float | None
    distance: float | None
    domain: int | None


@dataclass(frozen=True, eq=False)
class Finished:
    """An application has come to the end of its session."""

    digest: str
    last: InferenceReport  # its frames since the last report
