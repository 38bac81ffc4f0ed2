"""A backend that computes whole cells in this process, as Ray does in others."""

from __future__ import annotations

import pickle

from driftlab.actors.backend import CLASSES, RECORDING
from driftlab.platform.core.registry import import_class
from driftlab.platform.sim.inline import InlineBackend, InlineSession


class WholeCells(InlineBackend):
    """Computes whole cells on threads; everything is pickled on its way."""

    whole_cells, concurrency, classes = 2, 2, CLASSES

    def open(self, session):
        return Travelling(self.classes)


class RecordingCells(WholeCells):
    """Whole cells that write their tables, as on one computer."""

    classes = RECORDING


class Travelling(InlineSession):
    def __init__(self, classes):
        super().__init__()
        self.classes = classes

    def place(self, node, *args):
        if node.kind == "cell":
            self.nodes[node] = import_class(self.classes["cell"])(*travelled([self._payload(one) for one in args]))
        else:
            super().place(node, *travelled(args))

    def call(self, node, verb, *args):
        return super().call(node, verb, *travelled(args))

    def result(self, job):
        return travelled(super().result(job))

    @staticmethod
    def _payload(argument):
        return argument.reply.payload if hasattr(argument, "reply") else argument


def travelled(thing):
    return pickle.loads(pickle.dumps(thing))
