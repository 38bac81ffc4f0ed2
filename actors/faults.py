"""Fault injection: kill a run's actors at random moments; results must not change."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator, Sequence

import psutil

EVERY_KIND = ("EdgeDevice", "Application", "Teacher", "Learner", "Recorder")


def actor_processes(labels: Sequence[str] = EVERY_KIND) -> list[psutil.Process]:
    """Find the processes of this run's actors: descendants of this process with an actor's class in their title."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess, IndexError):
            if kind_in(process.cmdline()[0]) in labels:
                found.append(process)
    return found


def kind_in(title: str) -> str:
    """Return the actor's class from a process title such as `ray::Learner.call`."""
    return title.removeprefix("ray::").partition(".")[0]


def kill_one(rng: random.Random, labels: Sequence[str] = EVERY_KIND) -> str | None:
    """Kill an actor's process with SIGKILL, kinds being equally likely; return its title's call."""
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
    """Kill `kills` actors while the block runs, one after each random pause; yields the growing list of calls.

    Kinds take turns: a kind is killed again only after all others.
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
