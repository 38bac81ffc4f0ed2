"""The records that cross borders between nodes, backends and tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from driftlab.errors import RunError

Weights = Mapping[str, npt.NDArray[Any]]  # a state dict as plain arrays: shared memory can carry it without a copy
Columns = Mapping[str, Any]  # column -> values of one chunk; a scalar stands for the whole chunk
Rows = Mapping[str, Sequence[Columns]]  # table -> chunks
Engine = Literal["accelerator", "cpu", "storage", "link"]
Share = float | Mapping[Engine, float]  # of a machine; a number stands for all its parts


@dataclass(frozen=True)
class Reply:
    """What a node's verb gives back: facts for the loop, rows for the tables, a payload for other nodes.

    Facts and rows are small and travel to the driver; the payload (frames, weights, deltas) never does.
    """

    facts: Any = None
    rows: Rows = field(default_factory=dict)
    payload: Any = None


@dataclass(frozen=True)
class LayerCost:
    """What one leaf layer computes and moves for one input."""

    name: str
    kind: str
    macs: int
    parameters: int
    input_bytes: int
    output_bytes: int
    weight_bytes: int


@dataclass(frozen=True)
class ModelCost:
    """A network's static account for one input of a given size."""

    macs: int
    parameters: int
    weight_bytes: int
    activation_bytes: int
    layers: tuple[LayerCost, ...] = ()
    kernel_bytes: int = 0  # of its weights, what has several dimensions: what networks of other widths can share


@dataclass(frozen=True)
class Passes:
    """What was computed with a network, in counts that depend on the data and never on the host."""

    forward: tuple[int, ...] = ()  # frames of each batch that went forward
    backward: tuple[int, ...] = ()  # frames of each batch whose gradients came back
    trained: tuple[str, ...] | None = None  # modules whose weights learned; None: all of them
    kept_bytes: int = 0  # held beside the network and its activations: an optimiser's state, copies, samples

    def __post_init__(self) -> None:
        """Refuse counts that no computation can have."""
        if any(frames < 1 for frames in (*self.forward, *self.backward)) or self.kept_bytes < 0:
            raise ValueError(f"passes take batches of at least one frame and keep at least 0 bytes, not {self}")


@dataclass(frozen=True)
class Need:
    """What a work takes, alone on the whole machine."""

    seconds: Mapping[Engine, float] = field(default_factory=dict)  # by part of the machine; one entry for most
    memory_bytes: int = 0
    joules: float = 0.0

    @property
    def alone_s(self) -> float:
        """How long it takes where nothing else runs: its parts come one after another."""
        return sum(self.seconds.values())


@dataclass(frozen=True)
class Variant:
    """One of the networks that an application can run: what it knows, and what it costs on the machine at hand."""

    name: str
    accuracy: float | None  # a fraction, as is known where it is chosen; None or NaN: nobody has measured it
    memory_bytes: int  # of what a scheduler shares out: its weights, or what somebody measured
    latency_s: float  # per frame, alone on the whole machine
    energy_j: float | None = None  # per frame
    macs: int | None = None
    judged: float | None = None  # accuracy on data that nothing was chosen by; None: only the known one is there
    kernel_bytes: int | None = None  # of its weights, as in its account; None: somebody else measured it

    def __post_init__(self) -> None:
        """Take NaN for not measured, where that may be, and refuse what no scheduler can compare."""
        for name in ("accuracy", "energy_j", "judged"):
            if (value := getattr(self, name)) is not None and math.isnan(value):
                object.__setattr__(self, name, None)
        if not (0 <= self.latency_s < math.inf and self.memory_bytes >= 0):
            needs = f"{self.latency_s} s per frame and {self.memory_bytes} bytes"
            raise RunError(f"The network '{self.name}' takes {needs}; both must be finite and at least 0.")

    @property
    def reached(self) -> float | None:
        """The accuracy that results tell."""
        return self.accuracy if self.judged is None else self.judged


@dataclass(frozen=True)
class Captured:
    """A device has seen the frames of one window."""

    frames: int
    has_truth: bool


@dataclass(frozen=True)
class Uploaded:
    """A device has packed sampled frames for the link."""

    frames: int
    bytes: int  # what the link carries
    gross_bytes: int  # with what the encoder says about itself, which is not sent
    newest_s: float
    host_seconds: float  # to pack them


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
    usable_s: float | None  # time of the newest sample in the buffer with a label that counts, if there is one
    phis: tuple[float, ...]  # how much the teacher's labels changed from each sample to the next
    unknown: int = 0  # labels that name no class of the list
    domain: int | None = None  # of the newest sample, where the experiment tells domains


@dataclass(frozen=True)
class Trained:
    """A learner has finished a phase and packed what changed."""

    frames: int  # in the buffer that it trained on
    iterations: int
    bytes: int
    values: int  # how many coordinates the update carries
    loss_first: float | None
    loss_last: float | None
    score: float | None  # on what was trained on, where the phase asked for it
    skipped: str  # why there is no update; empty when there is one
    host_seconds: float
    clamped: int = 0  # values too large for how the update writes them
    work: Passes = Passes()


@dataclass(frozen=True)
class Applied:
    """An application has taken an update or labels, or refused them with a reason."""

    version: int  # of the newest model it holds
    accepted: bool
    reason: str = ""
    unknown: int | None = None  # how many of the labels name no class of the list


@dataclass(frozen=True)
class Received:
    """A learner or a teacher has decoded samples that came over the link."""

    frames: int
    refused: str = ""  # why it cannot read them


@dataclass(frozen=True)
class Tried:
    """A learner has tried out ways to learn on a part of its samples, and looked at the rest."""

    before: float | None  # score of the network as it is, a fraction
    after: tuple[float | None, ...]  # and after each way
    work: tuple[Passes, ...]  # of each trial, with the look at what came of it
    looks: Passes  # to find the score before


@dataclass(frozen=True, eq=False)
class Watched:
    """An application has run its model over a piece of its stream."""

    frames: int
    processed: int
    busy_s: float
    joules: Mapping[str, float]  # by what they were spent on
    scored: int  # frames with a truth to compare with
    frame_score_sum: float
    window_score_sum: float
    counts: npt.NDArray[np.int64] | None  # of the task over all of them; None where nothing was scored
    memory_bytes: int = 0  # the most that learning on the stream held


@dataclass(frozen=True)
class Noticed:
    """An application has summed up what it saw since it was asked last."""

    frames: int
    entropy: float | None
    distance: float | None
    domain: int | None


@dataclass(frozen=True, eq=False)
class Finished:
    """An application has come to the end of its session."""

    digest: str
    last: Watched  # what it saw and had not told yet
