"""The times at which a device can process its next frame, by its shares of the machine as far as they are known."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from driftlab.platform.world.machine import Course, taken_s

INFINITE_S = float("inf")


@dataclass
class ShareTimeline:
    """The course of an application's shares, and its current lesson on the stream."""

    answer: Course = ()
    beside: Course = ()  # for learning beside inference; empty: none
    until_s: float = 0.0  # courses are known until then
    lesson: tuple[float, float] | None = None  # its start, and its time alone on the machine
    learned: tuple[float, float] | None = None  # start and end of the previous lesson

    def extend(self, until_s: float, answer: Course, beside: Course = ()) -> None:
        """Append the shares since the last call."""
        self.answer, self.beside = _joined(self.answer, answer), _joined(self.beside, beside)
        self.until_s = until_s

    def forget(self, before_s: float) -> None:
        """Drop older shares, unless the lesson depends on them."""
        if self.lesson is not None:
            before_s = min(before_s, self.lesson[0])
        self.answer, self.beside = _since(self.answer, before_s), _since(self.beside, before_s)

    def answer_s(self, start_s: float, alone_s: float) -> float:
        """Return the time of an answer; outside lessons, the share for learning serves answers."""
        return taken_s(start_s, alone_s, self._answering() if self.beside else self.answer)

    def begin_lesson(self, start_s: float, alone_s: float) -> None:
        """Start a lesson; the answers before it are ready."""
        self.lesson = start_s, alone_s

    def lesson_end_s(self) -> float:
        """Return the end of the lesson, on the share beside or on the application's full share."""
        assert self.lesson is not None
        start_s, alone_s = self.lesson
        return start_s + taken_s(start_s, alone_s, self.beside or self.answer)

    def lesson_part(self, now_s: float) -> float:
        """Return the part of the lesson that is done by a time."""
        assert self.lesson is not None
        start_s, alone_s = self.lesson
        course = self.beside or self.answer
        stops = (*(time_s for time_s, _ in course[1:]), INFINITE_S)
        worked_s = sum(
            share * max(0.0, min(stop_s, now_s) - max(from_s, start_s))
            for (from_s, share), stop_s in zip(course, stops, strict=True)
        )
        return min(1.0, worked_s / alone_s) if alone_s else 1.0

    def end_lesson(self, end_s: float) -> None:
        """End the lesson; an answer that began during it ran without the share beside until now."""
        if self.lesson is not None:
            self.learned = self.lesson[0], end_s
            self.lesson = None

    def _answering(self) -> Course:
        """Return the course for answers: with the share beside, except during lessons."""
        lessons = [] if self.learned is None else [self.learned]
        lessons += [] if self.lesson is None else [(self.lesson[0], self.lesson_end_s())]
        first_s = max(self.answer[0][0], self.beside[0][0])
        steps_s = (time_s for time_s, _ in (*self.answer, *self.beside))
        edges = sorted({first_s, *itertools.chain.from_iterable(lessons), *steps_s})

        def share(time_s: float) -> float:
            learning = any(start_s <= time_s < end_s for start_s, end_s in lessons)
            return _at(self.answer, time_s) + (0.0 if learning else _at(self.beside, time_s))

        return tuple((time_s, share(time_s)) for time_s in edges if first_s <= time_s < INFINITE_S)


def _at(course: Course, time_s: float) -> float:
    return next((share for from_s, share in reversed(course) if from_s <= time_s), 0.0)


def _joined(before: Course, after: Course) -> Course:
    """Append a course, without steps that change nothing."""
    joined = list(before)
    for time_s, share in after:
        if not joined or joined[-1][1] != share:
            joined.append((time_s, share))
    return tuple(joined)


def _since(course: Course, time_s: float) -> Course:
    later = tuple(step for step in course if step[0] > time_s)
    return ((time_s, _at(course, time_s)), *later) if len(later) + 1 < len(course) else course
