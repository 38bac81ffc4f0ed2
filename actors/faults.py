"""Fault injection: kill actors of a run at random times. The results of the run must not change."""

from __future__ import annotations

import contextlib
import random
import re
import threading
from collections.abc import Iterator, Sequence

import psutil

EVERY_KIND = ("EdgeDevice", "Application", "Teacher", "Learner", "Recorder")  # where nodes are separate


def actor_processes(labels: Sequence[str] = EVERY_KIND) -> list[psutil.Process]:
    """Return the descendants of this process whose title has the class of an actor."""
    matching = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess, IndexError):
            if kind_in(process.cmdline()[0]) in labels:
                matching.append(process)
    return matching


def kind_in(title: str) -> str:
    """Return the class of the actor in a title such as `ray::Learner.call` or `ray::Cell ams/running/one`."""
    return re.split(r"[. ]", title.removeprefix("ray::"), maxsplit=1)[0]


def kill_one(rng: random.Random, labels: Sequence[str] = EVERY_KIND) -> str | None:
    """Kill one actor's process with SIGKILL and return its title; each kind is equally likely.

    Return None if there is no such process, or it ended before it was killed.
    """
    by_label: dict[str, list[psutil.Process]] = {}
    for process in actor_processes(labels):
        with contextlib.suppress(psutil.NoSuchProcess, IndexError):
            by_label.setdefault(kind_in(process.cmdline()[0]), []).append(process)
    if not by_label:
        return None
    victim = rng.choice(by_label[rng.choice(sorted(by_label))])
    with contextlib.suppress(psutil.NoSuchProcess, IndexError):
        title: str = victim.cmdline()[0]
        victim.kill()
        return title
    return None


@contextlib.contextmanager
def kill_repeatedly(kills: int, every_s: float, seed: int, labels: Sequence[str] = EVERY_KIND) -> Iterator[list[str]]:
    """Kill `kills` actors at random intervals while the block runs; yield the growing list of titles.

    A kind is killed again only after every other kind.
    """
    rng = random.Random(seed)
    over = threading.Event()
    killed: list[str] = []

    def kill_all() -> None:
        due = list(labels)
        while len(killed) < kills and not over.wait(rng.uniform(0, 2 * every_s)):
            title = kill_one(rng, due)
            if title is not None:
                killed.append(title)
                due.remove(kind_in(title))
                due = due or list(labels)

    thread = threading.Thread(target=kill_all, name="faults", daemon=True)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()
