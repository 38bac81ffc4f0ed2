"""When a device has time for its next frame, at the shares of its machine as far as they are known."""

from __future__ import annotations

from dataclasses import dataclass, field

from driftlab.platform.world.machine import Course, taken_s


@dataclass
class Pace:
    """The course of an application's shares, and the lesson that it learns on the stream, if it learns one."""

    answer: Course = ()
    beside: Course = ()  # of what it learns beside answering; empty: nothing
    until_s: float = 0.0  # so far courses are known
    lesson: tuple[float, float] | None = field(default=None)  # when it began, and its seconds alone on the machine

    def extend(self, until_s: float, answer: Course, beside: Course = ()) -> None:
        """Take in what the shares were since the last time."""
        self.answer, self.beside = _joined(self.answer, answer), _joined(self.beside, beside)
        self.until_s = until_s

    def forget(self, before_s: float) -> None:
        """Drop the shares that no work which is still going on depends on."""
        self.answer, self.beside = _since(self.answer, before_s), _since(self.beside, before_s)

    def answer_s(self, start_s: float, alone_s: float) -> float:
        """Tell how long an answer takes; a share for learning serves answers while nothing is learned."""
        return taken_s(start_s, alone_s, self._answering() if self.beside else self.answer)

    def lesson_end_s(self) -> float:
        """Tell when the lesson is learned: on the share beside, or on all of the application's."""
        assert self.lesson is not None
        start_s, alone_s = self.lesson
        return start_s + taken_s(start_s, alone_s, self.beside or self.answer)

    def _answering(self) -> Course:
        """Add the share beside to that of answering wherever no lesson is being learned."""
        busy = (float("inf"), float("inf")) if self.lesson is None else (self.lesson[0], self.lesson_end_s())
        first_s = max(self.answer[0][0], self.beside[0][0])
        edges = sorted({first_s, *busy, *(time_s for time_s, _ in (*self.answer, *self.beside))})

        def share(time_s: float) -> float:
            return _at(self.answer, time_s) + (0.0 if busy[0] <= time_s < busy[1] else _at(self.beside, time_s))

        return tuple((time_s, share(time_s)) for time_s in edges if first_s <= time_s < float("inf"))


def _at(course: Course, time_s: float) -> float:
    return next((share for from_s, share in reversed(course) if from_s <= time_s), 0.0)


def _joined(before: Course, after: Course) -> Course:
    """Append a course to what went before, without steps that change nothing."""
    joined = list(before)
    for time_s, share in after:
        if not joined or joined[-1][1] != share:
            joined.append((time_s, share))
    return tuple(joined)


def _since(course: Course, time_s: float) -> Course:
    later = tuple(step for step in course if step[0] > time_s)
    return ((time_s, _at(course, time_s)), *later) if len(later) < len(course) else course
