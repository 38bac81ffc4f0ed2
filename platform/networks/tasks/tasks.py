"""The operations that depend on the task.

These are ground truth, decoding of outputs, loss, scores and encoding of labels.

Ground truth, teacher labels and predictions have one type, `TaskLabels`, with one entry per frame: label maps
[n, height, width], classes [n], or boxes, an object array [n] of [m, 5 or 6]: class, x0, y0, x1, y1 in pixels and, in
predictions, a confidence. Other modules never read the entries. Importing this module does not import torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from driftlab.datasets.frames import IGNORE, NO_CLASS, Frames
from driftlab.errors import WireError, unknown_name
from driftlab.platform.core import wire
from driftlab.platform.core.metrics import confusion, confusions, f1_boxes, hits, miou, pixel_accuracy, ratio
from driftlab.platform.core.work import of_the_lab
from driftlab.platform.networks.tasks import boxes

if TYPE_CHECKING:
    import torch

TaskLabels = npt.NDArray[Any]
TaskLabel = Any  # one entry of TaskLabels
Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Source = npt.NDArray[np.float32]  # [height, width, 2] source position of each pixel (networks/tasks/flow.py)


class Task(ABC):
    """Base of the three stateless tasks in `TASKS`."""

    name: ClassVar[str]
    measure: ClassVar[str]  # name of the score

    @abstractmethod
    def truth(self, frames: Frames) -> TaskLabels | None:
        """Return the ground truth of the frames; None for a stream without."""

    @abstractmethod
    def blank(self, count: int, height: int, width: int) -> TaskLabels:
        """Return an uninitialised array for the labels of `count` frames."""

    @abstractmethod
    def nothing(self, height: int, width: int) -> TaskLabel:
        """Return the prediction of a frame without a prediction, which scores count as wrong."""

    @abstractmethod
    def predictions(self, output: torch.Tensor, height: int, width: int) -> TaskLabels:
        """Decode a network's output into predictions for frames of this size."""

    @abstractmethod
    def usable(self, labels: TaskLabels, classes: int) -> npt.NDArray[np.bool_]:
        """Mark the frames with at least one label for training."""

    @abstractmethod
    def loss(self, output: torch.Tensor, labels: TaskLabels) -> torch.Tensor | None:
        """Return the loss of an output, averaged over the usable labels; None without usable labels."""

    @abstractmethod
    def counts(self, predicted: TaskLabels, truth: TaskLabels, classes: int) -> Counts:
        """Return the counts per frame that the score requires; counts of frames can be added."""

    @abstractmethod
    def score(self, counts: Counts) -> Floats:
        """Return the score of counts, 0 to 1; NaN for zero counts."""

    def pixel_accuracy(self, counts: Counts) -> Floats | None:
        """Return the share of correct pixels; None for tasks without labels per pixel."""
        return None

    def by_class(self, counts: Counts, predicted: TaskLabels, truth: TaskLabels, classes: int) -> Counts | None:
        """Return ground truth, predictions and hits per class, [classes, 3].

        It is None for tasks without class labels.
        """
        return None

    def score_classes(self, by_class: Counts) -> Floats:
        """Return the score per class of these counts.

        It is NaN for classes that do not occur, and without class labels.
        """
        return np.full(len(by_class), np.nan)

    @abstractmethod
    def phi(self, now: TaskLabel, before: TaskLabel, classes: int) -> float:
        """Return the φ-score of AMS: the symmetric change between two labels, from 0 (equal) to 1 (disjoint).

        The paper uses the task's loss, with one of them as the prediction. With hard labels cross-entropy is then 0 or
        infinite, so each task has a bounded score instead.
        """

    @abstractmethod
    def mirror(self, labels: TaskLabels, width: int) -> TaskLabels:
        """Return the labels of horizontally mirrored frames."""

    @abstractmethod
    def warp(self, labels: TaskLabel, source: Source, otherwise: TaskLabel) -> TaskLabel:
        """Warp a label along the motion; `otherwise` fills the places without a source."""

    @abstractmethod
    def pack(self, labels: TaskLabel) -> bytes:
        """Encode one label for the link, with a checksum."""

    @abstractmethod
    def unpack(self, packed: bytes, height: int, width: int) -> TaskLabel:
        """Decode one label; refuse damaged bytes and another frame size."""

    @abstractmethod
    def count_unlisted(self, labels: TaskLabels, classes: int) -> int:
        """Return the number of labels outside the class list."""

    @abstractmethod
    def drop_unlisted(self, labels: TaskLabel, classes: int) -> TaskLabel:
        """Return a label without entries outside the class list, which cannot be scored."""

    @abstractmethod
    def restrict(
        self, predicted: TaskLabels, truth: TaskLabels, scored: tuple[int, ...]
    ) -> tuple[TaskLabels, TaskLabels]:
        """Return predictions and ground truth of which only some classes count; a place of them may be missed."""

    @abstractmethod
    def draw(self, labels: TaskLabel, image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return an image of a label on its frame, in the colours of the reports."""


class _OfClasses(Task):
    """Base of segmentation and classification."""

    label: ClassVar[type[np.integer[Any]]]  # type of one label
    ignored: ClassVar[int]  # label of an unlisted class

    def nothing(self, height: int, width: int) -> TaskLabel:
        labels = self.blank(1, height, width)
        labels[...] = self.ignored
        return labels[0]

    @of_the_lab
    def predictions(self, output: torch.Tensor, height: int, width: int) -> TaskLabels:
        return output.max(dim=1).indices.cpu().numpy().astype(self.label, copy=False)

    def loss(self, output: torch.Tensor, labels: TaskLabels) -> torch.Tensor | None:
        import torch
        from torch.nn import functional as F

        if not _listed(labels, output.shape[1]).any():  # on the host: to read it from a GPU would wait for it
            return None
        target = torch.tensor(labels, device=output.device).long()
        target = torch.where((target >= 0) & (target < output.shape[1]), target, NO_CLASS)
        return F.cross_entropy(output, target, ignore_index=NO_CLASS)

    def usable(self, labels: TaskLabels, classes: int) -> npt.NDArray[np.bool_]:
        return np.asarray(_listed(labels, classes).any(axis=tuple(range(1, labels.ndim))))

    def count_unlisted(self, labels: TaskLabels, classes: int) -> int:
        return int(np.count_nonzero(~_listed(labels, classes)))

    def drop_unlisted(self, labels: TaskLabel, classes: int) -> TaskLabel:
        return np.where(_listed(labels, classes), labels, self.ignored).astype(self.label)[()]


def _only(labels: TaskLabels, scored: tuple[int, ...], otherwise: int) -> TaskLabels:
    return np.where(np.isin(labels, scored), labels, otherwise).astype(labels.dtype)


def _listed(labels: TaskLabels, classes: int) -> npt.NDArray[np.bool_]:
    return np.asarray((labels >= 0) & (labels < classes))


class Segmentation(_OfClasses):
    """Semantic segmentation: a class per pixel."""

    name, measure = "segmentation", "mIoU"
    label, ignored = np.uint8, IGNORE

    def truth(self, frames: Frames) -> TaskLabels | None:
        return frames.labels

    def blank(self, count: int, height: int, width: int) -> TaskLabels:
        return np.empty((count, height, width), dtype=np.uint8)

    def counts(self, predicted: TaskLabels, truth: TaskLabels, classes: int) -> Counts:
        """Return confusion matrices; labels outside the class list are ignored, as in the loss."""
        return confusions(predicted, self.drop_unlisted(truth, classes), classes)

    def score(self, counts: Counts) -> Floats:
        return miou(counts)

    def pixel_accuracy(self, counts: Counts) -> Floats | None:
        return pixel_accuracy(counts)

    def restrict(
        self, predicted: TaskLabels, truth: TaskLabels, scored: tuple[int, ...]
    ) -> tuple[TaskLabels, TaskLabels]:
        """Leave out the pixels of other classes; where another class is predicted, nothing is."""
        return _only(predicted, scored, self.ignored), _only(truth, scored, self.ignored)

    def by_class(self, counts: Counts, predicted: TaskLabels, truth: TaskLabels, classes: int) -> Counts | None:
        matrix = counts.sum(axis=0)
        return np.stack([matrix.sum(axis=1), matrix.sum(axis=0)[:classes], np.diagonal(matrix)], axis=1)

    def score_classes(self, by_class: Counts) -> Floats:
        """Return the intersection over union per class."""
        true, predicted, hit = by_class.T
        return ratio(hit, true + predicted - hit)

    def phi(self, now: TaskLabel, before: TaskLabel, classes: int) -> float:
        """Return 1 - mIoU over the pixels and classes listed in both maps; 0 if there are none."""
        listed = _listed(now, classes) & _listed(before, classes)
        score = float(miou(confusion(np.where(listed, now, 0), np.where(listed, before, IGNORE), classes)))
        return 0.0 if np.isnan(score) else 1.0 - score

    def mirror(self, labels: TaskLabels, width: int) -> TaskLabels:
        return np.ascontiguousarray(labels[..., ::-1])

    def warp(self, labels: TaskLabel, source: Source, otherwise: TaskLabel) -> TaskLabel:
        from driftlab.platform.networks.tasks import flow

        moved = flow.warp(labels, source)
        return np.where(moved == IGNORE, otherwise, moved)

    def pack(self, labels: TaskLabel) -> bytes:
        return wire.pack(np.ascontiguousarray(labels, dtype=np.uint8).tobytes())

    def unpack(self, packed: bytes, height: int, width: int) -> TaskLabel:
        body = wire.unpack(packed, height * width)
        if len(body) != height * width:
            raise WireError(f"torn: {len(body)} bytes are no label map of {height} × {width}")
        return np.frombuffer(body, dtype=np.uint8).reshape(height, width)

    def draw(self, labels: TaskLabel, image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        from driftlab.datasets.sheet import PALETTE

        return PALETTE[labels]


class Classification(_OfClasses):
    """Classification: a class per frame."""

    name, measure = "classification", "accuracy"
    label, ignored = np.int64, NO_CLASS

    def truth(self, frames: Frames) -> TaskLabels | None:
        return frames.classes

    def blank(self, count: int, height: int, width: int) -> TaskLabels:
        return np.empty(count, dtype=np.int64)

    def counts(self, predicted: TaskLabels, truth: TaskLabels, classes: int) -> Counts:
        """Return correct and labelled frames; a confusion matrix would grow with the square of the classes."""
        listed = _listed(truth, classes)
        return np.stack([listed & (predicted == truth), listed], axis=1).astype(np.int64)

    def score(self, counts: Counts) -> Floats:
        return ratio(counts[..., 0], counts[..., 1])

    def by_class(self, counts: Counts, predicted: TaskLabels, truth: TaskLabels, classes: int) -> Counts | None:
        listed = _listed(truth, classes)
        columns = (truth[listed], predicted[listed], truth[listed & (predicted == truth)])
        return np.stack([np.bincount(each, minlength=classes) for each in columns], axis=1)

    def score_classes(self, by_class: Counts) -> Floats:
        """Return the share of correct frames per class."""
        return ratio(by_class[:, 2], by_class[:, 0])

    def restrict(
        self, predicted: TaskLabels, truth: TaskLabels, scored: tuple[int, ...]
    ) -> tuple[TaskLabels, TaskLabels]:
        """Leave out the frames of other classes."""
        return predicted, _only(truth, scored, self.ignored)

    def phi(self, now: TaskLabel, before: TaskLabel, classes: int) -> float:
        """Return 1 for different classes, else 0; 0 if either is not listed."""
        return float(now != before and min(now, before) >= 0 and max(now, before) < classes)

    def mirror(self, labels: TaskLabels, width: int) -> TaskLabels:
        return labels

    def warp(self, labels: TaskLabel, source: Source, otherwise: TaskLabel) -> TaskLabel:
        """Return the class unchanged: it does not depend on motion."""
        return otherwise if labels == NO_CLASS else labels

    def pack(self, labels: TaskLabel) -> bytes:
        """Encode a class below 256 in one byte, any other in four."""
        small = 0 <= int(labels) < 256
        return wire.pack(np.array(labels, dtype="<u1" if small else "<i4").tobytes())

    def unpack(self, packed: bytes, height: int, width: int) -> TaskLabel:
        body = wire.unpack(packed, 4)
        if len(body) not in (1, 4):
            raise WireError(f"torn: {len(body)} bytes are no class")
        return np.frombuffer(body, dtype="<u1" if len(body) == 1 else "<i4").astype(np.int64)[0]

    def draw(self, labels: TaskLabel, image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return an image filled with the colour of the class."""
        from driftlab.datasets.sheet import colour_of

        return np.broadcast_to(colour_of(int(labels)), image.shape)


class Detection(Task):
    """Object detection: boxes of people and cars."""

    name, measure = "detection", "F1"

    def truth(self, frames: Frames) -> TaskLabels | None:
        return None if frames.boxes is None else boxes.stack([boxes.drop_small(one) for one in frames.boxes])

    def blank(self, count: int, height: int, width: int) -> TaskLabels:
        return np.empty(count, dtype=object)

    def nothing(self, height: int, width: int) -> TaskLabel:
        return np.empty((0, 6))

    def usable(self, labels: TaskLabels, classes: int) -> npt.NDArray[np.bool_]:
        """Return True for every frame: a frame without boxes is a training sample too."""
        return np.ones(len(labels), dtype=bool)

    @of_the_lab
    def predictions(self, output: torch.Tensor, height: int, width: int) -> TaskLabels:
        return boxes.stack([boxes.drop_small(one) for one in boxes.decode(output, height, width)])

    def loss(self, output: torch.Tensor, labels: TaskLabels) -> torch.Tensor | None:
        classes = output.shape[1] - boxes.SIDES
        return boxes.loss(output, boxes.stack([self.drop_unlisted(answer, classes) for answer in labels]))

    def count_unlisted(self, labels: TaskLabels, classes: int) -> int:
        return sum(len(answer) - len(self.drop_unlisted(answer, classes)) for answer in labels)

    def drop_unlisted(self, labels: TaskLabel, classes: int) -> TaskLabel:
        return labels[labels[:, 0] < classes]

    def counts(self, predicted: TaskLabels, truth: TaskLabels, classes: int) -> Counts:
        """Return the numbers of matched, predicted and true boxes."""
        listed = [self.drop_unlisted(true, classes) for true in truth]
        rows = [(hits(ours, true), len(ours), len(true)) for ours, true in zip(predicted, listed, strict=True)]
        return np.array(rows, dtype=np.int64).reshape(len(rows), 3)

    def restrict(
        self, predicted: TaskLabels, truth: TaskLabels, scored: tuple[int, ...]
    ) -> tuple[TaskLabels, TaskLabels]:
        """Leave out the boxes of other classes."""
        ours, theirs = (boxes.stack([one[np.isin(one[:, 0], scored)] for one in each]) for each in (predicted, truth))
        return ours, theirs

    def score(self, counts: Counts) -> Floats:
        """Return F1; 1 for a frame without true and predicted boxes."""
        matched, total = counts[..., 0], counts[..., 1] + counts[..., 2]
        return np.asarray(np.where(total > 0, 2 * matched / np.maximum(total, 1), 1.0))

    def phi(self, now: TaskLabel, before: TaskLabel, classes: int) -> float:
        """Return 1 - F1 at an overlap of one half."""
        return 1.0 - f1_boxes(self.drop_unlisted(now, classes), self.drop_unlisted(before, classes))

    def mirror(self, labels: TaskLabels, width: int) -> TaskLabels:
        return boxes.stack([boxes.mirror(one, width) for one in labels])

    def warp(self, labels: TaskLabel, source: Source, otherwise: TaskLabel) -> TaskLabel:
        return boxes.warp(labels, source)

    def pack(self, labels: TaskLabel) -> bytes:
        return boxes.pack(labels)

    def unpack(self, packed: bytes, height: int, width: int) -> TaskLabel:
        return boxes.unpack(packed, height, width)

    def draw(self, labels: TaskLabel, image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        return boxes.draw(labels, image)


SEGMENTATION, CLASSIFICATION, DETECTION = Segmentation(), Classification(), Detection()
TASKS: Mapping[str, Task] = {task.name: task for task in (SEGMENTATION, CLASSIFICATION, DETECTION)}


def find(name: str) -> Task:
    """Return the task with a name."""
    if name not in TASKS:
        raise unknown_name("task", name, TASKS)
    return TASKS[name]
