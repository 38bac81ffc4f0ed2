"""Nodes that reveal lost, repeated and reordered calls: each reply depends on all calls before."""

import hashlib
import itertools
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import ray

from driftlab.errors import RequestError
from driftlab.platform.core.records import Reply

KINDS = ("device", "application", "teacher", "learner", "builder", "recorder")
CLASSES = dict.fromkeys(KINDS, "ray_fakes:Fake")


class Fake:
    def __init__(self, name, *payloads):
        self.digest = _digest(name, *payloads)
        self.ballast = np.zeros(1000)

    def work(self, number, *payloads, size=1000, pause_s=0.0):
        """Hash number and payloads into the state, from which the payload is generated."""
        time.sleep(pause_s)
        self.digest = _digest(self.digest, number, *payloads)
        seed = int(self.digest[:8], 16)
        rows = {"frames": [{"digest": [self.digest]}]}
        return Reply(self.digest, rows, np.random.default_rng(seed).integers(0, 255, size, np.uint8))

    def big(self, number, *payloads):
        """Work with a payload large enough for the object store."""
        return self.work(number, *payloads, size=200_000)

    def huge(self, number, *payloads):
        return self.work(number, *payloads, size=6_000_000)

    def slow(self, number, pause_s, *payloads):
        return self.work(number, *payloads, pause_s=pause_s)

    def fail(self):
        raise ValueError("the node's own mistake")

    def refuse(self):
        raise RequestError("asked for too much")

    def leave(self, how):
        """Raise or exit with something else than an Exception."""
        if how == "sys.exit":
            sys.exit(3)
        if how == "GeneratorExit":
            raise GeneratorExit
        if how == "recursion":
            return self.leave(how)
        return Reply(np.int8(1000 if how == "overflow" else "x"))

    def die(self, trace):
        """Write the actor's name to a file, and kill its process."""
        with Path(trace).open("a") as file:
            file.write(f"{ray.get_runtime_context().get_actor_name()}\n")
        os.kill(os.getpid(), signal.SIGKILL)

    def die_once(self, trace, number):
        if not Path(trace).exists():
            self.die(trace)
        return self.work(number)

    def count(self, file, number):
        """Work, and add a line to a file."""
        with Path(file).open("a") as trace:
            trace.write(f"{number}\n")
        return self.work(number)

    def odd(self):
        return Reply(_Unpicklable())

    def surroundings(self):
        import cv2
        import torch

        return Reply({"pid": os.getpid(), "torch": torch.get_num_threads(), "cv2": cv2.getNumThreads()})

    def stiffen(self, number):
        """Work, and make this node impossible to pickle."""
        self.ballast = _Unpicklable()
        return self.work(number)

    def pid(self):
        return Reply(os.getpid())


class _Unpicklable:
    def __reduce__(self):
        raise TypeError("not picklable")


def _digest(*parts):
    whole = hashlib.sha256()
    for part in parts:
        whole.update(part.tobytes() if isinstance(part, np.ndarray) else str(part).encode())
    return whole.hexdigest()


def program(session, seed, calls, *, nodes=6, checkpoint_every=0, until=lambda: True):
    """Run random calls that use each other's payloads; return the replies in order of the calls.

    After these calls it continues until the condition holds: a prefix of a longer program, not another one.
    """
    from driftlab.platform.sim.session import NodeId

    rng = np.random.default_rng(seed)
    ids = [NodeId(KINDS[i % len(KINDS)], f"n{i}") for i in range(nodes)]
    jobs, answers = [], []
    for node in ids:
        session.place(node, node.name)
    for number in itertools.count():
        if number >= calls and until():
            break
        sources = [jobs[i] for i in rng.integers(0, len(jobs), 2)] if jobs else []
        verb = "big" if rng.random() < 0.5 else "work"
        jobs.append(session.call(ids[rng.integers(nodes)], verb, number, *sources))
        if checkpoint_every and number % checkpoint_every == checkpoint_every - 1:
            session.checkpoint()
        if len(jobs) > 8:
            reply = session.result(jobs.pop(int(rng.integers(4))))
            answers.append((reply.facts, reply.rows))
    return answers + [(reply.facts, reply.rows) for reply in map(session.result, jobs)]
