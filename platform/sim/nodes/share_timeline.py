"""The times at which a device can process its next frame, by its shares of the processor so far."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from driftlab.platform.world.processor import ShareSchedule, task_duration_s

INFINITE_S = float("inf")


@dataclass
class ShareTimeline:
    """The share schedules of an application, and its current training batch on the stream."""

    inference_share: ShareSchedule = ()
    concurrent_share: ShareSchedule = ()  # for training during inference; empty: none
    until_s: float = 0.0  # the schedules end then
    batch_span: tuple[float, float] | None = None  # its start, and its isolated time
    last_batch_span: tuple[float, float] | None = None  # start and end of the previous batch

    def extend(self, until_s: float, inference_share: ShareSchedule, concurrent_share: ShareSchedule = ()) -> None:
        """Append the shares since the last call."""
        self.inference_share, self.concurrent_share = (
            _joined(self.inference_share, inference_share),
            _joined(self.concurrent_share, concurrent_share),
        )
        self.until_s = until_s

    def drop_before(self, before_s: float) -> None:
        """Drop the shares before a time, but none since the start of the running training batch."""
        if self.batch_span is not None:
            before_s = min(before_s, self.batch_span[0])
        self.inference_share, self.concurrent_share = (
            _since(self.inference_share, before_s),
            _since(self.concurrent_share, before_s),
        )

    def inference_duration_s(self, start_s: float, isolated_s: float) -> float:
        """Return the time of an inference, which also gets the training share while nothing trains."""
        return task_duration_s(
            start_s, isolated_s, self._inference_schedule() if self.concurrent_share else self.inference_share
        )

    def begin_batch(self, start_s: float, isolated_s: float) -> None:
        """Start a training batch; the inference before it has ended."""
        self.batch_span = start_s, isolated_s

    def batch_end_s(self) -> float:
        """Return the end of the training batch, on the concurrent share or on the full share."""
        assert self.batch_span is not None
        start_s, isolated_s = self.batch_span
        return start_s + task_duration_s(start_s, isolated_s, self.concurrent_share or self.inference_share)

    def batch_fraction(self, now_s: float) -> float:
        """Return the part of the training batch that is computed by a time."""
        assert self.batch_span is not None
        start_s, isolated_s = self.batch_span
        schedule = self.concurrent_share or self.inference_share
        stops = (*(time_s for time_s, _ in schedule[1:]), INFINITE_S)
        worked_s = sum(
            share * max(0.0, min(stop_s, now_s) - max(from_s, start_s))
            for (from_s, share), stop_s in zip(schedule, stops, strict=True)
        )
        return min(1.0, worked_s / isolated_s) if isolated_s else 1.0

    def end_batch(self, end_s: float) -> None:
        """End the training batch; an inference that began during it had no concurrent share until now."""
        if self.batch_span is not None:
            self.last_batch_span = self.batch_span[0], end_s
            self.batch_span = None

    def _inference_schedule(self) -> ShareSchedule:
        """Return the schedule of inference: with the concurrent share, except during training batches."""
        batches = [] if self.last_batch_span is None else [self.last_batch_span]
        batches += [] if self.batch_span is None else [(self.batch_span[0], self.batch_end_s())]
        first_s = max(self.inference_share[0][0], self.concurrent_share[0][0])
        steps_s = (time_s for time_s, _ in (*self.inference_share, *self.concurrent_share))
        edges = sorted({first_s, *itertools.chain.from_iterable(batches), *steps_s})

        def share(time_s: float) -> float:
            training = any(start_s <= time_s < end_s for start_s, end_s in batches)
            return _at(self.inference_share, time_s) + (0.0 if training else _at(self.concurrent_share, time_s))

        return tuple((time_s, share(time_s)) for time_s in edges if first_s <= time_s < INFINITE_S)


def _at(schedule: ShareSchedule, time_s: float) -> float:
    return next((share for from_s, share in reversed(schedule) if from_s <= time_s), 0.0)


def _joined(before: ShareSchedule, after: ShareSchedule) -> ShareSchedule:
    """Append a schedule, without steps that keep the share."""
    joined = list(before)
    for time_s, share in after:
        if not joined or joined[-1][1] != share:
            joined.append((time_s, share))
    return tuple(joined)


def _since(schedule: ShareSchedule, time_s: float) -> ShareSchedule:
    later = tuple(step for step in schedule if step[0] > time_s)
    return ((time_s, _at(schedule, time_s)), *later) if len(later) + 1 < len(schedule) else schedule
