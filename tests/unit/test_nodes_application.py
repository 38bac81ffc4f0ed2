"""The application: the weights behind each frame, the frames during inference, and the scores."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import cv2
import numpy as np
import pytest

from driftlab.datasets.frames import IGNORE, Frames
from driftlab.datasets.sheet import PALETTE
from driftlab.platform.core.metrics import confusion, miou
from driftlab.platform.core.registry import Member
from driftlab.platform.networks import vector
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.cost_counter import count_cost
from driftlab.platform.networks.predict import predict, state_of
from driftlab.platform.sim.nodes.application import AppNode
from driftlab.platform.sim.setting import AppNodeConfig, StudentSpec
from driftlab.platform.streaming.wire import delta
from driftlab.platform.world import hardware
from driftlab.platform.world.cost import inference_j, inference_s

HEIGHT, WIDTH, CLASSES, FPS = 16, 24, 8, 4.0
STUDENT = StudentSpec("half", CLASSES, HEIGHT, WIDTH, Member("adaptation", "frozen"), Member("scaling", "fixed"), 0)
FAST = hardware.find("server-h200")


def frames(start_s: float, stop_s: float, seed: int = 0) -> Frames:
    times_s = np.arange(round(start_s * FPS), round(stop_s * FPS)) / FPS
    n = len(times_s)
    rng = np.random.default_rng([seed, round(start_s * FPS)])
    return Frames(
        times_s=times_s,
        images=rng.integers(0, 256, (n, HEIGHT, WIDTH, 3), dtype=np.uint8),
        scenes=np.arange(n, dtype=np.int32),
        labels=rng.integers(0, CLASSES, (n, HEIGHT, WIDTH), dtype=np.uint8),
    )


def weights(seed: int = 0) -> Mapping[str, Any]:
    return state_of(build("half", CLASSES, seed=seed))


def application(machine: hardware.Hardware = FAST, snapshots: tuple[float, ...] = ()) -> AppNode:
    cost = count_cost(build("half", CLASSES, seed=0), HEIGHT, WIDTH)
    return AppNode(AppNodeConfig("cam", "segmentation", STUDENT, machine, cost, snapshot_times_s=snapshots), weights())


def watch(node: AppNode, seen: Frames, labels: Any = None, share: float = 1.0) -> Any:
    """Run an application on frames at one share of the processor, until every prediction is there."""
    return node.run_stream(seen, labels, float(seen.times_s[-1]) + 100, ((float(seen.times_s[0]), share),))


def whole(version: int, seed: int) -> tuple[bytes, vector.Vector]:
    """Make a full update, and the weights in it."""
    model = build("half", CLASSES, seed=seed)
    after = vector.read(model)
    change = delta.Change(after, after, None, version, None)
    made = delta.encode(change, vector.layout_of(model), delta.Format())
    return made.data, made.vector


def shown(reply: Any) -> list[np.ndarray]:
    """Return the predicted labels, from the snapshots."""
    return [to_labels(chunk["prediction"][0]) for chunk in reply.rows["snapshots"]]


def to_labels(png: bytes) -> np.ndarray:
    rgb = cv2.imdecode(np.frombuffer(png, np.uint8), cv2.IMREAD_COLOR)[..., ::-1]
    return (rgb[:, :, None, :] == PALETTE[None, None]).all(-1).argmax(-1).astype(np.uint8)


def column(reply: Any, name: str) -> list[Any]:
    return np.asarray(reply.rows["frames"][0][name]).tolist()


class TestVersions:
    ARRIVALS_S = (0.6, 1.0, 1.01, 3.9, 4.0)  # between frames, on one, just after, before and on a window's edge

    @pytest.mark.slow
    def test_each_frame_uses_the_newest_weights_that_had_arrived(self):
        times_s = tuple(np.arange(0, 24) / FPS)
        node = application(snapshots=times_s)
        vectors = {0: vector.read(build("half", CLASSES, seed=0))}
        replies, todo = [], list(enumerate(self.ARRIVALS_S, start=1))
        for start_s in (0.0, 2.0, 4.0):
            while todo and todo[0][1] <= start_s + 2:
                number, arrive_s = todo.pop(0)
                update, vectors[number] = whole(number, seed=number)
                assert node.apply(update, arrive_s).facts.accepted
            replies.append(watch(node, frames(start_s, start_s + 2)))
        wanted = [sum(arrive_s <= time_s for arrive_s in self.ARRIVALS_S) for time_s in times_s]
        assert [number for reply in replies for number in column(reply, "version")] == wanted
        assert set(wanted) == {0, 1, 2, 3, 5}
        model = build("half", CLASSES, seed=0)
        images = np.concatenate([frames(start_s, start_s + 2).images for start_s in (0.0, 2.0, 4.0)])
        seen = [labels for reply in replies for labels in shown(reply)]
        for number, image, labels in zip(wanted, images, seen, strict=True):
            vector.write(model, vectors[number])
            assert np.array_equal(predict(model, image[None])[0], labels)

    @pytest.mark.parametrize(
        "spoil", [lambda data: data[:-9], lambda data: b"", lambda data: data[:50] + b"!" + data[51:]]
    )
    def test_a_torn_update_is_refused_and_keeps_the_state(self, spoil):
        node = application()
        before = node.finish().facts.digest
        applied = node.apply(spoil(whole(1, seed=1)[0]), 1.0).facts
        assert (applied.accepted, applied.version) == (False, 0)
        assert applied.reason.startswith("torn")
        assert node.finish().facts.digest == before

    def test_an_update_twice_or_out_of_order_is_refused(self):
        node = application()
        model = build("half", CLASSES, seed=0)
        layout, held = vector.layout_of(model), vector.read(model)
        one, two = (delta.encode(delta.Change(held, held + n, None, n, n - 1), layout, delta.Format()) for n in (1, 2))
        assert node.apply(two.data, 1.0).facts.reason.startswith("out of order")
        assert node.apply(one.data, 1.0).facts.accepted
        assert node.apply(one.data, 1.0).facts.reason.startswith("replayed")
        assert node.apply(two.data, 1.0).facts.version == 2

    def test_weights_of_another_network_are_refused(self):
        other = build("tiny", CLASSES, seed=0)
        held = vector.read(other)
        foreign = delta.encode(delta.Change(held, held, None, 1, None), vector.layout_of(other), delta.Format())
        assert application().apply(foreign.data, 1.0).facts.reason.startswith("foreign")


class TestSkippedFrames:
    def slow(self, latency_s: float) -> hardware.Hardware:
        """Describe a machine that needs so long for one frame."""
        layers = len(count_cost(build("half", CLASSES, seed=0), HEIGHT, WIDTH).layers)
        return replace(FAST, macs_per_s=1e30, bytes_per_s=1e30, overhead_s=latency_s / layers)

    @pytest.mark.parametrize("latency_s", [0.1, 0.25, 0.26, 0.6, 1.3])
    def test_a_frame_that_arrives_during_inference_is_skipped(self, latency_s):
        node = application(self.slow(latency_s))
        found = [
            flag for start_s in (0.0, 2.0) for flag in column(watch(node, frames(start_s, start_s + 2)), "processed")
        ]
        wanted, free_s = [], 0.0
        for time_s in np.arange(0, 16) / FPS:
            wanted.append(bool(time_s >= free_s - 1e-6))
            free_s = time_s + latency_s if wanted[-1] else free_s
        assert found == wanted

    def test_half_the_processor_takes_twice_as_long(self):
        node = application(self.slow(0.2))
        reply = watch(node, frames(0, 2), share=0.5)
        assert column(reply, "processed") == [True, False] * 4
        assert column(reply, "latency_ms")[::2] == pytest.approx([400.0] * 4)
        assert np.isnan(column(reply, "latency_ms")[1::2]).all()

    def test_the_last_prediction_is_kept_across_windows_and_updates(self):
        node = application(self.slow(1.3), snapshots=tuple(np.arange(0, 16) / FPS))
        model = build("half", CLASSES, seed=0)
        first = watch(node, frames(0, 2))
        node.apply(whole(1, seed=1)[0], 2.0)
        second = watch(node, frames(2, 4))
        processed = column(first, "processed") + column(second, "processed")
        images = np.concatenate([frames(0, 2).images, frames(2, 4).images])
        versions = [0] * 8 + [1] * 8
        vectors = [vector.read(model), whole(1, seed=1)[1]]
        last = None
        for flag, version, image, labels in zip(processed, versions, images, shown(first) + shown(second), strict=True):
            if flag:
                vector.write(model, vectors[version])
                last = predict(model, image[None])[0]
            assert np.array_equal(labels, last)
        assert processed.index(True, 7) > 8  # a window begins while it is busy

    def test_work_is_counted_by_the_frames_that_were_processed(self):
        machine = self.slow(0.6)
        facts = watch(application(machine), frames(0, 2)).facts
        cost = count_cost(build("half", CLASSES, seed=0), HEIGHT, WIDTH)
        assert (facts.frames, facts.processed) == (8, 3)
        assert facts.busy_s == pytest.approx(3 * inference_s(cost, machine)) == pytest.approx(1.8)
        assert facts.joules["inference"] == pytest.approx(3 * inference_j(cost, machine))


class TestScores:
    @pytest.mark.slow
    def test_scores_cover_the_last_ten_seconds_for_any_windows(self):
        edges = (0.0, 1.0, 4.0, 4.5, 11.0, 13.0, 24.0)
        seen = [frames(start_s, stop_s) for start_s, stop_s in itertools.pairwise(edges)]
        node = application(snapshots=tuple(np.arange(0, 96) / FPS))
        replies = [watch(node, part) for part in seen]
        predicted = np.array([labels for reply in replies for labels in shown(reply)])
        truth = np.concatenate([part.labels for part in seen])
        times_s = np.concatenate([part.times_s for part in seen])
        for name, oldest_s in (("score_frame", 0.0), ("score_window", 10.0)):
            found = [value for reply in replies for value in column(reply, name)]
            for index, time_s in enumerate(times_s):
                first = index if not oldest_s else int(np.argmax(times_s > time_s - oldest_s + 1e-9))
                part = slice(first, index + 1)
                assert found[index] == pytest.approx(float(miou(confusion(predicted[part], truth[part], CLASSES))))
        accuracy = [value for reply in replies for value in column(reply, "pixel_accuracy")]
        assert accuracy == pytest.approx((predicted == truth).mean(axis=(1, 2)))
        assert sum(reply.facts.counts for reply in replies).tolist() == confusion(predicted, truth, CLASSES).tolist()

    def test_a_frame_without_known_truth_is_not_scored(self):
        """One of them made the score of a whole run NaN."""
        seen = frames(0, 2)
        seen.labels[3] = IGNORE
        reply = watch(application(), seen)
        assert reply.facts.scored == 7
        assert reply.facts.frame_score_sum == pytest.approx(np.nansum(column(reply, "score_frame")))
        assert np.isfinite(reply.facts.window_score_sum)

    def test_without_truth_no_frame_is_scored(self):
        reply = watch(application(), replace(frames(0, 2), labels=None))
        assert (reply.facts.scored, reply.facts.counts) == (0, None)
        assert reply.rows["frames"][0]["score_window"] is None

    def test_given_labels_replace_the_truth(self):
        seen = frames(0, 2)
        given, own = (
            watch(application(), part, labels)
            for part, labels in ((replace(seen, labels=None), seen.labels), (seen, None))
        )
        assert column(given, "score_window") == column(own, "score_window")


class TestPictures:
    def test_only_the_wanted_frames_are_kept(self):
        reply = watch(application(snapshots=(0.5, 1.75, 9.0)), frames(0, 2))
        assert [chunk["time_s"] for chunk in reply.rows["snapshots"]] == [[0.5], [1.75]]

    def test_they_show_frame_and_truth(self):
        seen = frames(0, 1)
        (picture,) = watch(application(snapshots=(0.5,)), seen).rows["snapshots"]
        image = cv2.imdecode(np.frombuffer(picture["image"][0], np.uint8), cv2.IMREAD_COLOR)[..., ::-1]
        assert np.array_equal(image, seen.images[2])
        assert np.array_equal(to_labels(picture["truth"][0]), seen.labels[2])
        assert (picture["height"], picture["width"], picture["scene"]) == (HEIGHT, WIDTH, [2])

    def test_a_missing_truth_is_not_drawn(self):
        (picture,) = watch(application(snapshots=(0.5,)), replace(frames(0, 1), labels=None)).rows["snapshots"]
        assert picture["truth"] == [None]
