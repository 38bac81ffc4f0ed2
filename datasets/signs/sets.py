"""Signs as labelled sets: classes of equal size, generated from a seed and never stored."""

from __future__ import annotations

import numpy as np

from driftlab.datasets.labelled_set import LabelledSet, Pictures, SetRequest
from driftlab.datasets.signs.alphabet import kinds_of, names_of
from driftlab.datasets.signs.draw import draw
from driftlab.datasets.signs.views import draw_grain, draw_views

CHUNK = 256  # pictures drawn at a time; larger batches leave the processor's cache


def draw_set(request: SetRequest) -> LabelledSet:
    """Draw the three parts, each from its own seeds, so that a larger part begins with the smaller one."""
    assert request.counts is not None
    counts = [min(count, request.at_most or count) for count in request.counts]
    train, val, test = (_part(request, number, count) for number, count in enumerate(counts))
    return LabelledSet(request.name, names_of(request.problem.classes), train, val, test)


def _part(request: SetRequest, number: int, count: int) -> Pictures:
    problem = request.problem
    kinds = kinds_of(problem.classes)
    classes = np.arange(count, dtype=np.int64) % problem.classes
    images = np.empty((count, *request.size, 3), np.uint8)
    for start in range(0, count, CHUNK):
        rng = np.random.Generator(np.random.SFC64([request.seed, 21, number, start]))
        rows = min(CHUNK, count - start)
        # A full chunk is drawn even where fewer are needed: the first pictures are then the same for any count.
        views = draw_views(rng, [kinds[k % problem.classes] for k in range(start, start + CHUNK)], problem.difficulty)
        grain = draw_grain(rng, (CHUNK, *request.size, 3), problem.difficulty)
        images[start : start + rows] = draw(views, *request.size, grain)[:rows]
    return Pictures(images, classes)
