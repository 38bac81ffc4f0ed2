"""Measure the paths of a supernet that a frame leaves at the first confident exit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from driftlab.platform.networks.branched import Branched
from driftlab.platform.networks.early_exit import Floats, output_confidence
from driftlab.platform.networks.paths import PathCatalogue
from driftlab.platform.networks.predict import inputs_for
from driftlab.platform.networks.training.training_loop import DataSplits, LabelledFrames
from driftlab.platform.scaling.staged import CHUNK, count_features, run


@dataclass(frozen=True, eq=False)
class LeavingScores:
    """Score, and share of frames per exit, of each path with several exits, by threshold and number."""

    scores: tuple[float, ...]
    leaving: Floats  # [paths, exits]


def grade_leaving(
    branched: Branched, catalogue: PathCatalogue, data: DataSplits, frames: LabelledFrames
) -> LeavingScores:
    """Score every path with several exits at each threshold; each exit runs once per prefix."""
    space, first = branched.space, len(branched.space)
    scores, leaving = [float("nan")] * (len(catalogue) - first), np.zeros((len(catalogue) - first, space.stages))
    features = [run(branched.stem, branched.expects.convert(inputs_for(branched.stem, frames.images)))]
    counts, confidences = list[npt.NDArray[np.int64]](), list[Floats]()  # of each exit of the current path
    numbers = {catalogue.decode(number): number - first for number in range(first, len(catalogue))}
    for path in space.walk():
        del features[len(path) :], counts[len(path) - 1 :], confidences[len(path) - 1 :]
        features.append(run(branched.stages[len(path) - 1][path[-1]], features[-1]))
        head = branched.heads[len(path) - 1]
        counts.append(count_features(data, frames, features[-1], head))
        confidences.append(_confidences(frames, features[-1], head))
        for threshold in catalogue.thresholds if len(path) > 1 else ():
            number, exits = numbers[path, threshold], first_confident(np.stack(confidences, axis=1), threshold)
            chosen = np.stack(counts)[exits, np.arange(len(exits))]
            scores[number] = float(np.nan_to_num(data.task.score(chosen.sum(axis=0))))
            leaving[number] = np.bincount(exits, minlength=space.stages) / len(exits)
    return LeavingScores(tuple(scores), leaving)


def first_confident(confidences: Floats, threshold: float) -> npt.NDArray[np.intp]:
    """Return the first exit of each frame whose confidence reaches the threshold, else the last."""
    confident = confidences >= threshold
    confident[:, -1] = True
    exits: npt.NDArray[np.intp] = confident.argmax(axis=1)
    return exits


def _confidences(frames: LabelledFrames, features: Tensor, head: nn.Module) -> Floats:
    """Return the confidence of an exit on each frame."""
    found = []
    with torch.no_grad():
        for start in range(0, len(frames), CHUNK):
            part = slice(start, start + CHUNK)
            output = head(features[part], inputs_for(head, frames.images[part]))
            found.append(output_confidence(head, output).double().cpu().numpy())
    return np.concatenate(found)
