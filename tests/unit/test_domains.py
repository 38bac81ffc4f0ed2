"""Domains: frames of a workload under shifts, their order, and separate adaptation frames."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import numpy as np
import pytest
from PIL import Image

from driftlab.datasets.catalogue import open_stream
from driftlab.datasets.domains.orders import ORDERS, Domain, Order
from driftlab.datasets.domains.stream import shift_cached, turned_boxes, turned_labels
from driftlab.datasets.frames import IGNORE, NO_CLASS
from driftlab.errors import RequestError

SIGNS: dict[str, Any] = {"height": 16, "width": 16, "fps": 4.0, "duration_s": 60.0, "seed": 3}
THREE = ["gaussian_noise", "rotation", "inversion"]


def opened(name: str = "domains:set:signs/vg", **changes: Any):
    return open_stream(name, **{**SIGNS, "shifts": THREE, "domain_s": 5.0, **changes})


def order(kind: str, shifts: int = 3, severities: int = 3) -> Order:
    domains = tuple(Domain(f"shift-{i}", 1 + k) for i in range(shifts) for k in range(severities))
    return Order(kind, domains, frames=4, seed=5)


class TestOrders:
    @pytest.mark.parametrize("kind", ["interleaved", "recurring"])
    def test_a_round_has_every_domain_once_without_repeated_shifts(self, kind):
        shown = [order(kind).domain_at(4 * k) for k in range(36)]
        rounds = [shown[start : start + 9] for start in range(0, 36, 9)]
        assert all(sorted(one) == list(range(9)) for one in rounds)
        assert (len({tuple(one) for one in rounds}) == 1) == (kind == "recurring")
        inside = [(a // 3, b // 3) for one in rounds for a, b in itertools.pairwise(one)]
        assert all(a != b for a, b in inside)

    def test_successive_rounds_meet_at_different_shifts(self):
        shown = [order("interleaved").domain_at(4 * k) // 3 for k in range(90)]
        assert all(a != b for a, b in itertools.pairwise(shown))

    def test_severities_rise_and_fall(self):
        shown = [order("gradual").domain_at(4 * k) for k in range(15)]
        assert [number % 3 for number in shown] == [0, 1, 2, 1, 0] * 3
        assert {number // 3 for number in shown[:5]} != {number // 3 for number in shown[5:10]}

    def test_mixed_frames_are_independent(self):
        mixed = order("mixed")
        shown = np.array([mixed.domain_at(k) for k in range(3000)])
        assert np.abs(np.bincount(shown) - 3000 / 9).max() < 4 * np.sqrt(3000 / 9)
        assert (shown[1:] == shown[:-1]).mean() == pytest.approx(1 / 9, abs=0.03) and mixed.changes(3000) == ()

    @pytest.mark.parametrize("kind", ORDERS)
    def test_frames_can_be_read_in_any_order(self, kind):
        asked = [order(kind).domain_at(number) for number in (500, 3, 77)]
        known = order(kind)
        assert asked == [known.domain_at(number) for number in (500, 3, 77)]

    @pytest.mark.slow
    def test_a_markov_chain_has_its_rho_and_frequencies(self):
        chain = Order("markov", order("markov", 4, 1).domains, 40, 3, rho=0.8, imbalance=8.0)
        states = np.array([chain.domain_at(frame) for frame in range(6000)])
        shares = np.bincount(states, minlength=4) / 6000
        wanted = 8.0 ** -np.arange(0, 1.1, 1 / 3) / (8.0 ** -np.arange(0, 1.1, 1 / 3)).sum()
        assert np.allclose(shares, wanted, atol=3 * 0.5 * np.sqrt((1.8 / 0.2) / 6000))
        runs = np.diff(np.flatnonzero(np.diff(states, prepend=-1)))
        first = states[np.flatnonzero(np.diff(states, prepend=-1))][:-1] == 0
        assert runs[first].mean() == pytest.approx(1 / (0.2 * (1 - wanted[0])), rel=0.15)
        assert chain.changes(50) == tuple(np.flatnonzero(np.diff(states[:50])) + 1)


class TestStream:
    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["domains:set:signs/vg", "domains:signs/town", "domains:streets/driving_la"])
    def test_a_frame_is_a_function_of_seed_and_number(self, name):
        stream, again = opened(name), pickle.loads(pickle.dumps(opened(name)))
        frames = stream.at([1.0, 20.0, 41.25])
        shift_cached.cache_clear()  # so that the second stream draws the same frames again
        one = again.at([20.0])
        assert np.array_equal(frames.images[1], one.images[0]) and frames.scenes[1] == one.scenes[0]
        assert not np.array_equal(opened(name, seed=4).at([20.0]).images, one.images)

    @pytest.mark.slow
    def test_small_images_are_cached_for_all_streams_of_a_seed(self):
        shift_cached.cache_clear()
        first, again = (opened("domains:set:digits").at([1.0, 20.0]) for _ in range(2))
        assert np.array_equal(first.images, again.images)
        assert (shift_cached.cache_info().misses, shift_cached.cache_info().hits) == (2, 2)

    @pytest.mark.slow
    def test_a_longer_stream_begins_like_a_shorter_one(self):
        times_s = np.arange(0, 60, 2.5)
        short, long = (opened(duration_s=length_s).at(times_s) for length_s in (60.0, 600.0))
        assert np.array_equal(short.images, long.images) and np.array_equal(short.classes, long.classes)

    @pytest.mark.slow
    def test_scenes_are_domains_and_changes_are_their_boundaries(self):
        stream = opened(severities=[2, 5])
        scenes = stream.at(np.arange(240) / 4).scenes
        edges = np.flatnonzero(np.diff(scenes)) + 1
        assert tuple(edges / 4) == stream.changes_s() and set(scenes) == set(range(5))  # inversion has one severity

    @pytest.mark.slow
    def test_adaptation_and_scored_frames_share_no_image(self):
        stream = opened(adapt_s=2.0, shifts=["inversion"], duration_s=300.0)
        frames = stream.at(np.arange(1200) / 4)
        adapt = np.arange(1200) % 20 < 8
        assert np.array_equal(frames.classes == NO_CLASS, adapt)
        seen = [{image.tobytes() for image in frames.images[rows]} for rows in (adapt, ~adapt)]
        assert not seen[0] & seen[1] and len(seen[0]) == 400 and len(seen[1]) == 600  # of 1000, each once

    @pytest.mark.slow
    def test_adaptation_frames_can_follow_scored_frames(self):
        stream = opened(before_s=1.0, adapt_s=2.0, shifts=["inversion"], duration_s=300.0)
        frames = stream.at(np.arange(1200) / 4)
        adapt = (np.arange(1200) % 20 >= 4) & (np.arange(1200) % 20 < 12)
        assert np.array_equal(frames.classes == NO_CLASS, adapt)
        seen = [{image.tobytes() for image in frames.images[rows]} for rows in (adapt, ~adapt)]
        assert not seen[0] & seen[1] and len(seen[0]) == 400 and len(seen[1]) == 600  # of 1000, each once

    @pytest.mark.slow
    def test_a_subpopulation_is_the_darkest_part_of_each_class(self):
        stream = opened(shifts=["subpopulation"], severities=[5], duration_s=300.0)
        frames, every = (
            stream.at(np.arange(1200) / 4),
            opened(shifts=["clean"], duration_s=300.0).at(np.arange(1000) / 4),
        )
        light = [one.images.mean(axis=(1, 2, 3)) for one in (frames, every)]
        assert len({image.tobytes() for image in frames.images}) == 200  # a fifth of 1000
        for kind in (0, 1):
            dark, full = light[0][frames.classes == kind], light[1][every.classes == kind]
            assert dark.max() <= np.quantile(full, 0.21)

    @pytest.mark.slow
    def test_labels_are_correlated_by_the_dirichlet_distribution(self):
        shown = [
            opened("domains:set:signs/vc", delta=delta, duration_s=300.0).at(np.arange(1000) / 4)
            for delta in (0.0, 0.1)
        ]
        same = [(one.classes[1:] == one.classes[:-1]).mean() for one in shown]
        assert same[0] < 0.2 and same[1] > 0.85
        assert np.array_equal(*(np.bincount(one.classes) for one in shown))  # the same pictures in another order

    def test_another_set_is_a_domain_of_the_shared_classes(self, tmp_path):
        rng = np.random.default_rng(0)
        for part, kind, level in (
            ("train", "3 - three", 60),
            ("test", "3 - three", 90),
            ("test", "7", 120),
            ("test", "dog", 30),
        ):
            place = tmp_path / part / kind
            place.mkdir(parents=True)
            for number in range(6):
                pixels = rng.integers(level, level + 9, (20, 20, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(place / f"{number}.png")
        (tmp_path / "train" / "7").mkdir()
        (tmp_path / "train" / "dog").mkdir()
        for name in ("7", "dog"):
            Image.fromarray(np.zeros((20, 20, 3), np.uint8)).save(tmp_path / "train" / name / "0.png")
        other = f"set:images:{tmp_path}"
        stream = opened("domains:set:digits", shifts=["clean", other], adapt_s=2.0, order="recurring", duration_s=40.0)
        frames = stream.at(np.arange(160) / 4)
        shown = frames.scenes == 1
        light = frames.images.mean(axis=(1, 2, 3))
        judged = shown & (frames.classes != NO_CLASS)
        assert set(frames.classes[judged]) <= {3, 7} and len(set(frames.classes[~shown])) == 11
        assert all((light[n] > 105) == (frames.classes[n] == 7) for n in np.flatnonzero(judged))
        assert light[shown].min() > 80  # no dog

    def test_a_set_without_common_classes_is_refused(self):
        with pytest.raises(RequestError, match="share no class"):
            assert opened("domains:set:digits", shifts=["set:signs/vg"]).classes

    @pytest.mark.parametrize("changes", [{"delta": 0.1}, {"shifts": ["subpopulation"]}])
    def test_only_a_labelled_set_can_be_subsampled(self, changes):
        with pytest.raises(RequestError, match="domains:set"):
            opened("domains:signs/town", **changes)

    def test_adaptation_frames_have_no_labels(self):
        stream = opened("domains:streets/driving_la", adapt_s=1.0, shifts=["inversion"])
        labels = stream.at([0.0, 1.25]).labels
        assert (labels[0] == IGNORE).all() and not (labels[1] == IGNORE).any()

    def test_parameters_of_the_base_remain(self):
        plain, crowded = (opened("domains:streets/driving_la", crowd=crowd).at([3.0]).images for crowd in (1.0, 0.0))
        assert not np.array_equal(plain, crowded)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"shifts": ["inversoin"]}, "inversion"),
            ({"shifts": []}, "shifts"),
            ({"shifts": ["inversion", "inversion"]}, "twice"),
            ({"severities": [0, 3]}, "severities"),
            ({"severities": ["3"]}, "severities"),
            ({"order": ["gradual", "mixed"]}, "order"),
            ({"adapt_s": 5.0}, "domain_s"),
            ({"domain_s": 0.0}, "domain_s"),
        ],
    )
    def test_errors_name_the_fault(self, changes, message):
        with pytest.raises(RequestError, match=message):
            opened(**changes)

    def test_domains_of_domains_are_refused(self):
        with pytest.raises(RequestError, match="domains:WORKLOAD once"):
            opened("domains:domains:set:digits")


class TestRotations:
    def test_a_box_turns_with_its_label_map(self):
        labels = np.zeros((60, 80), np.uint8)
        labels[20:40, 30:50] = 1
        boxes = np.array([[1, 30, 20, 50, 40]], np.float32)
        for severity in (1, 3, 5):
            rows, columns = np.nonzero(turned_labels(labels, severity) == 1)
            tight = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
            assert np.abs(turned_boxes(boxes, (60, 80), severity)[0, 1:] - tight).max() <= 1.0

    def test_a_box_outside_the_image_is_dropped(self):
        assert not len(turned_boxes(np.array([[0, 0, 0, 3, 3]], np.float32), (60, 80), 5))
