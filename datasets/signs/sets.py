"""Signs as labelled sets: classes of equal size, rendered from a seed and never stored."""

from __future__ import annotations

import numpy as np

from driftlab.datasets.labelled_set import LabelledImages, LabelledSet, SetRequest
from driftlab.datasets.signs.alphabet import kinds_of, names_of
from driftlab.datasets.signs.draw import draw
from driftlab.datasets.signs.views import draw_grain, draw_views

CHUNK = 256  # images rendered at a time; larger batches exceed the CPU cache


def draw_set(request: SetRequest) -> LabelledSet:
    """Return the three parts, each from separate seeds; a larger part begins like a smaller one."""
    assert request.counts is not None
    counts = [min(count, request.at_most or count) for count in request.counts]
    train, val, test = (_part(request, number, count) for number, count in enumerate(counts))
    return LabelledSet(request.name, names_of(request.problem.classes), train, val, test)


def _part(request: SetRequest, number: int, count: int) -> LabelledImages:
    problem = request.problem
    kinds = kinds_of(problem.classes)
    classes = np.arange(count, dtype=np.int64) % problem.classes
    images = np.empty((count, *request.size, 3), np.uint8)
    for start in range(0, count, CHUNK):
        rng = np.random.Generator(np.random.SFC64([request.seed, 21, number, start]))
        rows = min(CHUNK, count - start)
        # Draw a full chunk even if fewer images are needed, so that the first images are the same for any count.
        views = draw_views(rng, [kinds[k % problem.classes] for k in range(start, start + CHUNK)], problem.difficulty)
        grain = draw_grain(rng, (CHUNK, *request.size, 3), problem.difficulty)
        images[start : start + rows] = draw(views, *request.size, grain)[:rows]
    return LabelledImages(images, classes)
