"""Online training: the state in its digest, switches of networks, and unusual streams."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from stream_factory import (
    HALF,
    HEIGHT,
    NETWORKS,
    TRAINING_J,
    WIDTH,
    application,
    between,
    columns,
    made,
    member,
    missed,
    real_app,
    run_app,
    spent,
    steps,
    stream,
    weights,
)

from driftlab.platform.adaptation.base import Predicted
from driftlab.platform.networks import state
from driftlab.platform.sim.nodes import metering
from driftlab.platform.sim.nodes.application import AppNode


class TestDigest:
    def digest(self, node: AppNode) -> str:
        return str(node.finish().facts.digest)

    def node(self) -> AppNode:
        return real_app(member("tent", stream_batch=3))

    def test_zero_steps_keep_the_digest(self):
        node, digests = application(steps(steps=0)), []
        digests.append(self.digest(node))
        run_app(node, stream(10.0), (0.0, 10.0))
        assert self.digest(node) == digests[0]
        assert self.digest(pickle.loads(pickle.dumps(node))) == digests[0]

    @pytest.mark.parametrize("name", ["tent", "adabn", "onda", "shot"])
    def test_a_reset_at_a_ground_truth_boundary_restores_the_source(self, name):
        """To the bit: at 8 s another scene begins, and no batch of it is full by 8.6 s."""
        node = real_app(
            member(name, stream_batch=3, episodic=True), domain_oracle=True, network=NETWORKS.get(name, "half")
        )
        source, digest = state.read(node._model), self.digest(node)
        found = run_app(node, between(stream(), 0.0, 7.9), (0.0, 7.9))
        assert max(found["frames.version"]) >= 1
        assert self.digest(node) != digest
        node.run_stream(between(stream(), 7.9, 8.6), None, 8.6, ((7.9, 1.0),))
        held = state.read(node._model)
        assert held.vector.tobytes() == source.vector.tobytes()
        assert state.changed_buffers(source.buffers, held.buffers) == ()
        assert self.digest(node) == digest


class TestSwitch:
    def test_an_interrupted_batch_is_charged_its_energy(self, monkeypatch):
        """Of a batch of 1.5 s that starts at 1.75 s, half a processor has done 1/8 s of work by 2 s."""
        monkeypatch.setattr(metering, "TOLERANCE", float("inf"))  # the cost is made up
        node = application(steps(training_runs="concurrent"), macs_per_s=16e6)
        node._costs[0, node._layout.size] = node._cost  # the other network costs as much
        node.run_stream(between(stream(), 0.0, 2.0), None, 2.0, HALF, HALF)
        node.switch(0)
        reply = node.run_stream(between(stream(), 2.0, 3.0), None, 3.0, ((2.0, 0.5),), ((2.0, 0.5),))
        (row,) = reply.rows["adaptations"]
        assert row["skipped"] == ["broken off: another network runs"]
        assert (row["end_s"], row["isolated_s"]) == ([2.0], [pytest.approx(0.125)])
        assert reply.facts.joules["training"] == pytest.approx(row["energy_j"][0]) == pytest.approx(TRAINING_J / 12)
        assert columns([reply.rows])["frames.latency_ms"] == pytest.approx([250.0, 250.0])  # training has ended

    def test_the_state_stays_and_the_source_is_the_source(self):
        node = real_app(member("tent", stream_batch=3))
        source = {name: array.copy() for name, array in node._adapter.memory.source.items()}
        run_app(node, stream(6.0), (0.0, 6.0))
        before, held = node._adapter.memory, state.read(node._model)
        assert before.steps > 1
        node.switch(0)
        after = node._adapter.memory
        assert after.steps == before.steps
        for old, new in zip(before.moments, after.moments, strict=True):
            assert {name: array.tobytes() for name, array in new.items()} == {
                name: array.tobytes() for name, array in old.items()
            }
        assert {name: array.tobytes() for name, array in after.source.items()} == {
            name: array.tobytes() for name, array in source.items()
        }
        assert state.read(node._model).vector.tobytes() == held.vector.tobytes()
        assert state.changed_buffers(held.buffers, state.read(node._model).buffers) == ()


class TestOddCases:
    def test_a_network_without_batch_norms(self, monkeypatch):
        monkeypatch.setattr("driftlab.platform.networks.module_utils.batch_norms", lambda model: {})
        found = run_app(real_app(member("adabn", stream_batch=3)), stream(6.0), (0.0, 6.0))
        assert set(found["adaptations.skipped"]) == {"the network has no batch norm"}
        assert spent(found, "training") == 0.0
        assert missed(found) == []

    @pytest.mark.parametrize("name", ["tent", "adabn", "onda", "shot"])
    def test_a_network_that_gives_no_numbers(self, name):
        """All predictions are there, and the row has the reason."""
        network = NETWORKS.get(name, "half")
        spoilt = dict(weights(network))
        first = next(one for one in spoilt if spoilt[one].ndim == 4)
        spoilt[first] = np.full_like(spoilt[first], np.nan)
        found = run_app(
            real_app(member(name, stream_batch=3), network=network, weights=spoilt), stream(5.0), (0.0, 5.0)
        )
        assert found["frames.frame"] == list(range(10))
        assert "finite" in found["adaptations.skipped"][0]
        assert all("finite" in why or "session ended" in why for why in found["adaptations.skipped"])
        assert set(found["frames.version"]) == {0}

    @pytest.mark.parametrize("predict_on", ["frame", "batch"])
    def test_a_batch_larger_than_the_session(self, predict_on):
        found = run_app(real_app(member("tent", stream_batch=99, predict_on=predict_on)), stream(6.0), (0.0, 2.0, 6.0))
        assert found["frames.frame"] == list(range(12))
        assert len(missed(found)) == (12 if predict_on == "batch" else 0)
        assert "adaptations.skipped" not in found

    @pytest.mark.parametrize("name", ["frozen", "adabn"])
    @pytest.mark.parametrize("network", ["half", "tiny_classifier", "tiny_detector"])
    def test_every_task(self, name, network):
        """Frames before the first prediction show none and have no score; the processor starts at 2.1 s."""
        node = real_app(member(name), network=network, snapshot_times_s=(0.0, 5.0))
        found = run_app(node, stream(6.0), (0.0, 1.0, 6.0), ((0.0, 0.0), (2.1, 1.0)))
        assert missed(found) == [1, 2, 3, 4]
        assert found["facts"][1].scored == 12

    @pytest.mark.parametrize("network", ["half", "tiny_classifier", "tiny_detector"])
    def test_a_session_without_predictions_has_rows_and_no_score(self, network):
        node = real_app(member("adabn", predict_on="batch", stream_batch=3), network=network, snapshot_times_s=(0.5,))
        found = run_app(node, stream(1.0), (0.0, 0.7, 1.0))
        assert missed(found) == [0, 1]
        assert sum(facts.scored for facts in found["facts"]) == 0

    def test_no_frames(self):
        found = run_app(made("tent batch concurrent"), stream(6.0), (0.0, 0.0, 6.0, 7.0, 8.0), HALF, HALF)
        assert found["frames.frame"] == list(range(12))

    @pytest.mark.parametrize("name", ["frozen", "tent frame exclusive", "tent batch exclusive", "tracking"])
    def test_a_share_that_never_comes_back(self, name):
        found = run_app(made(name), stream(6.0), (0.0, 3.0, 6.0), ((0.0, 1.0), (2.1, 0.0)))
        assert found["frames.frame"] == list(range(12))
        assert not any(found["frames.processed"][6:])
        assert len(found["frames.latency_ms"]) == 12

    def test_a_member_that_fails_in_predict_is_disabled_at_once(self, monkeypatch):
        asked = []

        def fails(member, model, memory, batch):
            asked.append(len(batch.images))
            raise ValueError("no idea")

        plain = run_app(application(steps()), stream(4.0), (0.0, 4.0))
        monkeypatch.setattr("stream_factory.Steps.predict", fails)
        found = run_app(application(steps()), stream(4.0), (0.0, 4.0))
        assert asked == [1]
        assert "ValueError: no idea" in found["adaptations.skipped"][0]
        assert found["adaptations.skipped"][1:] == plain["adaptations.skipped"]
        assert found["frames.score_frame"] == plain["frames.score_frame"]

    def test_predictions_for_other_frames_are_refused(self, monkeypatch):
        blank = np.zeros((2, HEIGHT, WIDTH), np.uint8)
        monkeypatch.setattr("stream_factory.Steps.predict", lambda *given: Predicted(blank, given[2]))
        found = run_app(application(steps()), stream(2.0), (0.0, 2.0))
        assert "2 predictions for 1 frames" in found["adaptations.skipped"][0]
        assert missed(found) == []
