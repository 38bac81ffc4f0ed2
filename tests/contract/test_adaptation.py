"""The contract of every member of the adaptation family."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from adaptation_factory import (
    CLASSES,
    HEIGHT,
    NETWORKS,
    VARIANTS,
    WIDTH,
    batch_of,
    content,
    prepared,
    settings_of,
    state_of,
)
from sampling_factory import EVERY, on_columns, sampled

from driftlab.datasets.frames import IGNORE
from driftlab.platform.adaptation.base import UNFIT, Adapted, Batch, Phase
from driftlab.platform.core.records import Passes
from driftlab.platform.core.registry import FAMILIES, Member, member_class, parameters
from driftlab.platform.networks import vector
from driftlab.platform.networks.cost_counter import count_cost
from driftlab.platform.networks.taps import tap
from driftlab.platform.networks.tasks.tasks import CLASSIFICATION, DETECTION
from driftlab.platform.sim.nodes.metering import CallMeter
from driftlab.platform.world.cost import task_cost
from driftlab.platform.world.hardware import HARDWARE

NORMLESS = "without_norms"
REQUIRE_NORMS = ("adabn", "onda", "tent", "eata", "sar", "rotta", "note", "rdumb", "asr")
ONE, SHORT, STREAM = Phase(iterations=1), Phase(iterations=2), Phase(on_stream=True)


@pytest.mark.parametrize("name", sorted(FAMILIES["adaptation"]))
class TestEveryMember:
    def test_the_class_declares_its_labels_and_source_summary(self, name):
        cls = member_class("adaptation", name)
        assert cls.labels in ("none", "teacher")
        assert isinstance(cls.has_source_summary, bool)

    def test_batches_of_the_stream_have_a_size(self, name):
        for size in (0, 4097):
            if "stream_batch" in parameters(member_class("adaptation", name)):
                with pytest.raises(Exception, match=f"'stream_batch' is {size}, must be in \\[1, 4096\\]"):
                    Member("adaptation", name, (("stream_batch", size),)).make()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Draw networks of each variant of the member's task; the member decides on batch norms."""
    if metafunc.cls is not TestEveryAdaptation:
        return
    cases = []
    for row, (name, params) in enumerate(VARIANTS):
        tasks, everywhere = member_class("adaptation", name).tasks, getattr(metafunc.function, "columns", 1) == EVERY
        suit = [one for one, (task, _) in NETWORKS.items() if everywhere or (task.name in tasks and one != NORMLESS)]
        label = "-".join(map(str, (name, *params.values())))
        cases += [
            pytest.param(name, params, network, id=f"{label}-{network}")
            for network in sampled(metafunc.function, row, suit)
        ]
    metafunc.parametrize(("name", "params", "network"), cases)


class TestEveryAdaptation:
    @pytest.fixture
    def member(self, name, params):
        return Member("adaptation", name, tuple(params.items())).make()

    @pytest.fixture
    def model(self, network):
        return NETWORKS[network][1]().eval()

    @pytest.fixture
    def batch(self, member, network) -> Callable[..., Batch]:
        return partial(batch_of, NETWORKS[network][0], labelled=member.labels == "teacher")

    @pytest.fixture
    def call(self, member) -> Phase:
        """How it learns: from the stream where it can."""
        return STREAM if member.learns_on_stream else SHORT

    def phases(self, member, model, batch) -> list[Adapted]:
        """Learn by several steps and by one and, where the member can, from the stream between them."""
        state, done = prepared(member, model), []
        for number, phase in enumerate((SHORT, STREAM if member.learns_on_stream else ONE, ONE)):
            done.append(member.adapt(model, state, batch(number), phase))
            state = done[-1].state
        return done

    def test_the_same_frames_give_the_same_network(self, member, model, batch):
        twin = copy.deepcopy(model)
        first, second = self.phases(member, model, batch), self.phases(member, twin, batch)
        assert state_of(model) == state_of(twin)
        assert [done.losses for done in first] == [done.losses for done in second]
        assert [done.passes for done in first] == [done.passes for done in second]

    def test_it_continues_from_a_checkpoint(self, member, model, batch, call):
        state = self.phases(member, model, batch)[-1].state
        twin, state_of_twin = pickle.loads(pickle.dumps((model, state)))
        first = member.adapt(model, state, batch(5), call)
        second = member.adapt(twin, state_of_twin, batch(5), call)
        assert state_of(model) == state_of(twin)
        assert first.losses == second.losses
        assert content(first.state) == content(second.state)

    def test_the_state_passed_in_stays_as_it_was(self, member, model, batch, call):
        """A call that is repeated after a fault must start from the same state as the first call."""
        state = self.phases(member, model, batch)[-1].state
        kept = pickle.dumps(state)
        member.adapt(model, state, batch(5), call)
        member.predict(model, state, batch(5))
        assert pickle.dumps(state) == kept

    def test_a_state_owns_its_numbers(self, member, model, batch):
        for state in (prepared(member, model), self.phases(member, model, batch)[-1].state):
            kept = pickle.dumps(state)
            with torch.no_grad():
                for value in model.state_dict().values():
                    value.add_(1)
            assert pickle.dumps(state) == kept

    def test_it_states_all_passes_that_it_runs(self, member, model, batch, call):
        """The lab would charge the others; among the members here there are none."""
        cost = count_cost(model, HEIGHT, WIDTH)
        tap(model, cost)
        state, meter = prepared(member, model), CallMeter(0, {})
        for number in range(3):
            with meter.call("adapt", cost, len(batch(number).images)) as ran:
                done = member.adapt(model, state, batch(number), call)
            assert ran.beyond(done.passes or Passes()) == ()
            state = done.state

    @on_columns(2)
    def test_the_frames_stay_as_they_were(self, member, model, batch, call):
        given = batch()
        before = pickle.dumps((given.images, given.labels, given.times_s))  # torch ignores a read-only flag
        state = prepared(member, model)
        member.predict(model, state, given)
        member.adapt(model, state, given, call)
        assert pickle.dumps((given.images, given.labels, given.times_s)) == before

    def test_it_leaves_no_gradient_and_no_borrowed_storage(self, member, model, batch):
        self.phases(member, model, batch)
        for parameter in model.parameters():
            assert parameter.grad is None
            assert parameter.untyped_storage().nbytes() == parameter.numel() * parameter.element_size()

    @on_columns(2)
    def test_calls_restore_the_settings_of_the_network(self, member, model, batch, call):
        before = settings_of(model)
        state = prepared(member, model)
        assert settings_of(model) == before
        state = member.adapt(model, state, batch(), SHORT).state
        assert settings_of(model) == before
        state = member.predict(model, state, batch()).state
        assert settings_of(model) == before
        state = member.adapt(model, state, batch(), call).state
        assert settings_of(model) == before
        member.reset(model, state)
        assert settings_of(model) == before

    @on_columns(2)
    def test_the_changed_mask_covers_all_changed_weights(self, member, model, batch):
        state = prepared(member, model)
        still = {name: value.clone() for name, value in model.named_parameters() if not value.requires_grad}
        for number in range(3):
            before = vector.read(model)
            phase = STREAM if member.learns_on_stream and number % 2 else SHORT
            done = member.adapt(model, state, batch(number), phase)
            moved = vector.read(model) != before
            if done.changed is None:
                assert not moved.any()
            else:
                assert done.changed.shape == moved.shape
                assert not moved[~done.changed].any()
            state = done.state
        for name, value in still.items():
            assert torch.equal(model.get_parameter(name), value)

    def test_it_does_not_disturb_the_generators_of_others(self, member, model, batch):
        torch.manual_seed(5)
        np.random.seed(5)
        before = torch.random.get_rng_state(), np.random.get_state()[1].tobytes()
        state = self.phases(member, model, batch)[-1].state
        member.predict(model, state, batch())
        assert torch.equal(before[0], torch.random.get_rng_state())
        assert before[1] == np.random.get_state()[1].tobytes()

    def test_reset_returns_to_the_prepared_state(self, member, model, batch):
        fresh = pickle.dumps(prepared(member, model))
        source = state_of(model)
        first = self.phases(member, model, batch)
        adapted = state_of(model)
        reset = member.reset(model, first[-1].state)
        assert state_of(model) == source
        assert pickle.dumps(reset) == fresh
        self.phases(member, model, batch)
        assert state_of(model) == adapted

    def test_going_on_takes_no_adapted_weights_for_the_source(self, member, model, batch, network):
        source = NETWORKS[network][1]().eval()
        expected = state_of(source)
        old = self.phases(member, model, batch)[-1].state
        state = prepared(member, source, go_on=old)
        assert state_of(source) == expected
        state = member.adapt(source, state, batch(7), SHORT).state
        member.reset(source, state)
        assert state_of(source) == expected

    def test_its_work_is_stated_and_can_be_priced(self, member, model, batch, call):
        cost = count_cost(model, HEIGHT, WIDTH)
        before = state_of(model)
        calls = self.phases(member, model, batch)
        for done in calls:
            assert (done.passes is not None) or done.skipped
            if done.passes is not None:
                cost_of_phase = task_cost(cost, HARDWARE["jetson-nx"], done.passes)
                assert bool(cost_of_phase.seconds) == bool(done.passes.forward)
                assert len(done.passes.backward) <= len(done.passes.forward)
                assert cost_of_phase.memory_bytes >= done.passes.kept_bytes
            if done.iterations:
                assert done.passes is not None
                assert done.passes.forward
        learned = state_of(model) != before
        assert not learned or any(done.passes.forward for done in calls)

    def test_more_steps_never_cost_less(self, member, model, batch):
        cost, spent = count_cost(model, HEIGHT, WIDTH), []
        for count in (0, 1, 3):
            twin = copy.deepcopy(model)
            done = member.adapt(twin, prepared(member, twin), batch(frames=9), Phase(count))
            if count == 0:
                assert done.passes is not None
                assert done.passes.forward == done.passes.backward == ()
                assert done.iterations == 0
                assert state_of(twin) == state_of(model)
            spent.append(task_cost(cost, HARDWARE["jetson-nx"], done.passes).isolated_s)
        assert spent == sorted(spent)
        assert spent[0] == 0

    def test_predicted_passes_equal_the_passes_made(self, member, model, batch, call):
        for phase in (SHORT, call, Phase(0)):
            predicted_passes = member.passes_of(phase, 7)
            done = member.adapt(model, prepared(member, model), batch(frames=7), phase)
            if predicted_passes is not None and (not done.skipped or done.passes.forward):
                assert (predicted_passes.forward, predicted_passes.backward) == (
                    done.passes.forward,
                    done.passes.backward,
                )

    def test_on_the_stream_it_trains_once_on_every_frame(self, member, model, batch):
        if not member.learns_on_stream:
            pytest.skip("learns in phases alone")
        done = member.adapt(model, prepared(member, model), batch(frames=7), STREAM)
        assert done.iterations <= 7 // getattr(member, "every_frames", getattr(member, "every_batches", 7))
        if not done.skipped:
            assert 7 in done.passes.forward

    def test_predictions_in_adapt_equal_those_of_predict(self, member, model, batch):
        state = prepared(member, model)
        expected = member.predict(copy.deepcopy(model), state, batch())
        done = member.adapt(model, state, batch(), STREAM if member.learns_on_stream else SHORT)
        if done.predictions is not None:
            assert pickle.dumps(done.predictions) == pickle.dumps(expected.predictions)

    def test_predictions_do_not_depend_on_later_frames(self, member, model, batch):
        if member.predict_on == "batch":
            pytest.skip("its answers wait for the batch")
        state = self.phases(member, model, batch)[-1].state
        given = batch(9)
        two = replace(given, images=given.images[:2])
        whole, part = member.predict(model, state, given), member.predict(model, state, two)
        assert [np.asarray(a).tolist() for a in whole.predictions[:2]] == [
            np.asarray(a).tolist() for a in part.predictions
        ]

    def test_predicting_changes_no_weight(self, member, model, batch):
        state = self.phases(member, model, batch)[-1].state
        before = state_of(model)
        for frames in (0, 1, 5):
            given = batch(frames=frames)
            predicted = member.predict(model, state, given)
            assert len(predicted.predictions) == frames
            assert predicted.passes is None or sum(predicted.passes.forward) == frames
        assert state_of(model) == before

    @on_columns(2)
    def test_a_batch_without_labels_or_frames_changes_no_weight(self, member, model, batch, call):
        state = prepared(member, model)
        given = [batch(frames=0), batch(labelled=False)] if member.labels == "teacher" else [batch(frames=0)]
        if member.labels == "teacher" and batch().task is not DETECTION:
            blank = batch()
            blank.labels[:] = IGNORE
            given.append(blank)
        for nothing in given:
            before = state_of(model)
            done = member.adapt(model, state, nothing, call)
            assert state_of(model) == before
            assert done.changed is None
            assert done.iterations == 0
            assert done.skipped or member.__class__.__name__ == "Frozen"

    def test_frames_with_nan_change_no_weight(self, member, model, batch, call):
        state = prepared(member, model)
        good = batch()
        images = good.images.astype(np.float32)
        images[1, 3] = np.nan
        before = state_of(model)
        for phase in (call, Phase(iterations=3)):
            done = member.adapt(model, state, replace(good, images=images), phase)
            assert state_of(model) == before
            assert done.iterations == 0
            assert done.changed is None
            assert pickle.dumps(done.state) == pickle.dumps(state)

    def test_one_frame_and_one_scene_do_no_harm(self, member, model, batch, call):
        """A single frame, a domain of three frames, and frames of one class."""
        state = prepared(member, model)
        one, few, many = batch(frames=1), batch(frames=3), batch(frames=6)
        same = replace(many, images=np.broadcast_to(many.images[:1], many.images.shape))
        if member.labels == "teacher" and many.task is CLASSIFICATION:
            same.labels[:] = 0
        for given in (one, few, same):
            for phase in (call, SHORT):
                done = member.adapt(model, state, given, phase)
                assert done.iterations or done.skipped or member.__class__.__name__ == "Frozen"
                member.predict(model, done.state, given)
                state = done.state
        assert all(bool(value.isfinite().all()) for value in model.state_dict().values())

    def test_a_class_that_never_appears_does_no_harm(self, member, model, batch, call):
        """Its probability is 0 to the last bit, whose logarithm is no number, and no teacher names it."""
        head = [part for part in model.modules() if getattr(part, "bias", None) is not None][-1]
        with torch.no_grad():
            head.bias[-1] = -1e4
        state = prepared(member, model)
        for given in (batch(frames=6), batch(seed=1)):
            if member.labels == "teacher" and given.task is not DETECTION:
                given.labels[given.labels == CLASSES - 1] = 0
            done = member.adapt(model, state, given, call)
            assert done.iterations or done.skipped or member.__class__.__name__ == "Frozen"
            assert "finite" not in done.skipped
            state = done.state
        assert all(bool(value.isfinite().all()) for value in model.state_dict().values())
        predicted_labels = member.predict(model, state, given).predictions
        assert given.task is DETECTION or not (np.asarray(predicted_labels) == CLASSES - 1).any()


@pytest.mark.parametrize("name", REQUIRE_NORMS)
def test_members_for_norms_skip_a_network_without_them(name):
    task, built = NETWORKS[NORMLESS]
    member, model = Member("adaptation", name).make(), built().eval()
    given, before = batch_of(task, labelled=False), state_of(model)
    for phase in (STREAM, SHORT):
        done = member.adapt(model, prepared(member, model), given, phase)
        assert done.skipped == UNFIT[member.needs]
        assert done.passes == Passes()
    assert len(member.predict(model, done.state, given).predictions) == 4
    assert state_of(model) == before
