"""The times at which a device can process its next frame, by its shares of the machine as far as they are known."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from driftlab.platform.world.machine import ShareSchedule, taken_s

INFINITE_S = float("inf")


@dataclass
class ShareTimeline:
    """The course of an application's shares, and its current lesson on the stream."""

    inference_share: ShareSchedule = ()
    beside: ShareSchedule = ()  # for learning beside inference; empty: none
    until_s: float = 0.0  # courses are known until then
    batch_span: tuple[float, float] | None = None  # its start, and its time alone on the machine
    resumed_s: tuple[float, float] | None = None  # start and end of the previous lesson

    def extend(self, until_s: float, inference_share: ShareSchedule, beside: ShareSchedule = ()) -> None:
        """Append the shares since the last call."""
        self.inference_share, self.beside = _joined(self.inference_share, inference_share), _joined(self.beside, beside)
        self.until_s = until_s

    def drop_before(self, before_s: float) -> None:
        """Drop older shares, unless the lesson depends on them."""
        if self.batch_span is not None:
            before_s = min(before_s, self.batch_span[0])
        self.inference_share, self.beside = _since(self.inference_share, before_s), _since(self.beside, before_s)

    def inference_duration_s(self, start_s: float, alone_s: float) -> float:
        """Return the time of an answer; outside lessons, the share for learning serves answers."""
        return taken_s(start_s, alone_s, self._answering() if self.beside else self.inference_share)

    def begin_batch(self, start_s: float, alone_s: float) -> None:
        """Start a lesson; the answers before it are ready."""
        self.batch_span = start_s, alone_s

    def batch_end_s(self) -> float:
        """Return the end of the lesson, on the share beside or on the application's full share."""
        assert self.batch_span is not None
        start_s, alone_s = self.batch_span
        return start_s + taken_s(start_s, alone_s, self.beside or self.inference_share)

    def batch_fraction(self, now_s: float) -> float:
        """Return the part of the lesson that is done by a time."""
        assert self.batch_span is not None
        start_s, alone_s = self.batch_span
        course = self.beside or self.inference_share
        stops = (*(time_s for time_s, _ in course[1:]), INFINITE_S)
        worked_s = sum(
            share * max(0.0, min(stop_s, now_s) - max(from_s, start_s))
            for (from_s, share), stop_s in zip(course, stops, strict=True)
        )
        return min(1.0, worked_s / alone_s) if alone_s else 1.0

    def end_batch(self, end_s: float) -> None:
        """End the lesson; an answer that began during it ran without the share beside until now."""
        if self.batch_span is not None:
            self.resumed_s = self.batch_span[0], end_s
            self.batch_span = None

    def _answering(self) -> ShareSchedule:
        """Return the course for answers: with the share beside, except during lessons."""
        lessons = [] if self.resumed_s is None else [self.resumed_s]
        lessons += [] if self.batch_span is None else [(self.batch_span[0], self.batch_end_s())]
        first_s = max(self.inference_share[0][0], self.beside[0][0])
        steps_s = (time_s for time_s, _ in (*self.inference_share, *self.beside))
        edges = sorted({first_s, *itertools.chain.from_iterable(lessons), *steps_s})

        def share(time_s: float) -> float:
            learning = any(start_s <= time_s < end_s for start_s, end_s in lessons)
            return _at(self.inference_share, time_s) + (0.0 if learning else _at(self.beside, time_s))

        return tuple((time_s, share(time_s)) for time_s in edges if first_s <= time_s < INFINITE_S)


def _at(course: ShareSchedule, time_s: float) -> float:
    return next((share for from_s, share in reversed(course) if from_s <= time_s), 0.0)


def _joined(before: ShareSchedule, after: ShareSchedule) -> ShareSchedule:
    """Append a course, without steps that change nothing."""
    joined = list(before)
    for time_s, share in after:
        if not joined or joined[-1][1] != share:
            joined.append((time_s, share))
    return tuple(joined)


def _since(course: ShareSchedule, time_s: float) -> ShareSchedule:
    later = tuple(step for step in course if step[0] > time_s)
    return ((time_s, _at(course, time_s)), *later) if len(later) + 1 < len(course) else course
