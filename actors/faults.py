"""Killing a run's actors on purpose, at random moments, to see that nothing comes of it."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator, Sequence

import psutil

EVERY_KIND = ("EdgeDevice", "Application", "Teacher", "Learner", "Recorder")


def actor_processes(labels: Sequence[str] = EVERY_KIND) -> list[psutil.Process]:
    """Find the processes of this run's actors: descendants of this process that Ray has titled with their class."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess, IndexError):
            if kind_in(process.cmdline()[0]) in labels:
                found.append(process)
    return found


def kind_in(title: str) -> str:
    """Take the actor's class out of a process title such as `ray::Learner.call`."""
    return title.removeprefix("ray::").partition(".")[0]


def kill_one(rng: random.Random, labels: Sequence[str] = EVERY_KIND) -> str | None:
    """Kill an actor's process with SIGKILL, kinds being equally likely; return what it was doing."""
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
def storm(kills: int, every_s: float, seed: int, labels: Sequence[str] = EVERY_KIND) -> Iterator[list[str]]:
    """Kill so many actors while the block runs, one after each random pause; the list says which it has been.

    Kinds take turns: none is killed again before every other has been.
    """
    rng = random.Random(seed)
    over = threading.Event()
    killed: list[str] = []

    def rage() -> None:
        due = list(labels)
        while len(killed) < kills and not over.wait(rng.uniform(0, 2 * every_s)):
            title = kill_one(rng, due)
            if title is not None:
                killed.append(title)
                due.remove(kind_in(title))
                due = due or list(labels)

    thread = threading.Thread(target=rage, name="storm", daemon=True)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()
