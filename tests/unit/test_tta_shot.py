"""SHOT, the head of a network, and the drawing of mini-batches."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from tta_factory import STREAM, Nt, frames, near, outputs, state_of

from driftlab.platform.adaptation.base import Phase
from driftlab.platform.adaptation.batches import mini_batches, split_groups
from driftlab.platform.adaptation.objectives import information
from driftlab.platform.adaptation.shot import Shot, pseudo_labels
from driftlab.platform.core.records import Passes
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.features import features, head_of
from driftlab.platform.networks.module_utils import normalise_by_batch
from driftlab.platform.networks.predict import to_input
from driftlab.platform.networks.tasks.tasks import DETECTION, SEGMENTATION


class TestShot:
    def test_information_of_the_batch(self):
        model = Nt()
        with normalise_by_batch(model, keeps=False):
            logits = outputs(model)
        near(information(logits), -0.327641)
        near(information(logits, div_weight=0.0), 0.721258)
        near(information(logits[:1]), 0.0)  # one answer says nothing about variety

    def test_pseudo_labels(self):
        seen = torch.tensor([[2, 0], [1.8, 0.3], [0, 2], [0.2, 1.7], [1, 0.9], [0.9, 1.1]])
        logits = torch.tensor([[2, 0, -3], [0.1, 0.4, -3], [0, 2, -3], [0.5, 0.4, -3], [0.3, 0.2, -3], [0.2, 0.3, -3]])
        assert pseudo_labels(seen, logits).tolist() == [0, 0, 1, 1, 0, 1]

    def test_an_empty_class_takes_no_frames(self):
        seen = torch.tensor([[2, 0], [1.8, 0.1], [0, 2], [0.1, 1.7]])
        logits = torch.tensor([[3, 0, 1], [2.5, 0, 1.2], [0, 3, 1], [0, 2.5, 1]])
        assert pseudo_labels(seen, logits).tolist() == [0, 0, 1, 1]

    @pytest.mark.parametrize("cls_par", [0.0, 0.3])
    def test_it_steps_as_torch_does(self, cls_par):
        """Without pseudo-labels a phase is the maximising of information, with them the loss has one more part."""
        ours, theirs = (build("tiny_classifier", 4, seed=0) for _ in range(2))
        member, given = Shot(iterations=8, batch=6, relabel=3, cls_par=cls_par, learning_rate=0.01), frames(20)
        done = member.adapt(ours, member.prepare(ours), given, Phase())
        learning = [value for name, value in theirs.named_parameters() if not name.startswith("head.")]
        optimiser = torch.optim.SGD(learning, lr=1.0, momentum=0.9, nesterov=True, weight_decay=1e-3)
        rng, losses, labels = frames(20).rng, [], None
        drawn = [rng.choice(20, size=6, replace=False) for _ in range(8)]
        for step, rows in enumerate(drawn):
            if cls_par and step % 3 == 0:
                theirs.eval()
                with torch.no_grad():
                    parts = [features(theirs, to_input(given.images[at : at + 6])) for at in range(0, 20, 6)]
                    found = [torch.cat([getattr(part, what) for part in parts]) for what in ("features", "outputs")]
                labels = pseudo_labels(*found)
            theirs.train()
            optimiser.param_groups[0]["lr"] = 0.01 * (1 + 10 * (step + 1) / 8) ** -0.75
            optimiser.zero_grad()
            out = theirs(to_input(given.images[rows]))
            loss = information(out) + (cls_par * F.cross_entropy(out, labels[rows]) if cls_par else 0)
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        assert done.losses == tuple(losses)
        assert state_of(ours) == state_of(theirs)
        assert done.state.moments == ()  # the next phase begins at rest
        looks = (6, 6, 6, 2)
        each = [(6,) * 3, (6,) * 3, (6,) * 2]
        expected = (1, *(n for part in each for n in (*looks, *part))) if cls_par else (1, *(6,) * 8)
        assert done.passes.forward == expected
        assert done.passes.backward == (6,) * 8

    def test_what_it_trains_and_keeps(self):
        model, member = build("tiny_classifier", 4, seed=0), Shot(iterations=2)
        done = member.adapt(model, member.prepare(model), frames(20), Phase())
        layers = [name for part in ("first", *(f"deep.{n}" for n in range(3))) for name in (f"{part}.0", f"{part}.1")]
        assert list(done.passes.trained) == layers
        stored = sum(value.nbytes for value in model.state_dict().values())
        learning = sum(value.nbytes for name, value in model.named_parameters() if not name.startswith("head"))
        assert done.passes.kept_bytes == 2 * stored + learning + 20 * (48 * 4 + 4 * 4 + 8)

    def test_on_the_stream_it_steps_once_and_keeps_its_speed(self):
        ours, theirs = (build("tiny_classifier", 4, seed=0) for _ in range(2))
        member = Shot()
        learning = [value for name, value in theirs.named_parameters() if not name.startswith("head.")]
        optimiser = torch.optim.SGD(learning, lr=1e-3, momentum=0.9, nesterov=True, weight_decay=1e-3)
        state = member.prepare(ours)
        theirs.train()
        for number in range(3):
            done = member.adapt(ours, state, frames(8, number), STREAM)
            optimiser.zero_grad()
            information(theirs(to_input(frames(8, number).images))).backward()
            optimiser.step()
            state = done.state
            assert done.iterations == 1
            assert done.passes.forward == ((1, 8) if number == 0 else (8,))  # the first time it looks for the head
        assert state_of(ours) == state_of(theirs)

    @pytest.mark.parametrize(("network", "task"), [("tiny", SEGMENTATION), ("tiny_detector", DETECTION)])
    def test_other_tasks_are_refused(self, network, task):
        model, member = build(network, 4, seed=0), Shot()
        before = state_of(model)
        done = member.adapt(model, member.prepare(model), frames(4, task=task), STREAM)
        assert done.skipped == f"SHOT names whole frames, the task is {task.name}"
        assert done.passes == Passes()
        assert state_of(model) == before

    def test_one_frame_has_no_diversity(self):
        model, member = build("tiny_classifier", 4, seed=0), Shot()
        assert "diversity" in member.adapt(model, member.prepare(model), frames(1), STREAM).skipped

    def test_a_network_of_a_head_alone(self):
        model, member = nn.Sequential(nn.Flatten(), nn.Linear(16 * 24 * 3, 4)), Shot()
        done = member.adapt(model, member.prepare(model), frames(4), STREAM)
        assert "the head" in done.skipped


class TestHead:
    def test_the_last_layer_that_runs(self):
        class Backwards(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.head = nn.Linear(5, 2)
                self.trunk = nn.Conv2d(3, 5, 3)
                self.unused = nn.Linear(7, 7)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.head(self.trunk(x).mean(dim=(2, 3)))

        model = Backwards()
        x = torch.randn(2, 3, 8, 8)
        seen = features(model, x)
        assert seen.head == head_of(model, x) == "head"
        assert seen.layers == ("trunk", "head")
        assert torch.equal(seen.outputs, model(x))
        assert torch.equal(seen.features, model.trunk(x).mean(dim=(2, 3)))
        assert model.training  # as it was

    def test_convolutions_are_averaged_over_places_and_tokens_over_their_number(self):
        conv, tokens = nn.Conv2d(3, 4, 1), nn.Linear(6, 2)
        x, t = torch.randn(2, 3, 5, 5), torch.randn(2, 9, 6)
        assert torch.allclose(features(conv, x).features, x.mean(dim=(2, 3)))
        assert torch.allclose(features(tokens, t).features, t.mean(dim=1))

    def test_weights_that_others_make_are_a_heads_too(self):
        model = nn.Sequential(nn.Linear(3, 4), nn.utils.parametrizations.weight_norm(nn.Linear(4, 2)))
        assert head_of(model, torch.randn(2, 3)) == "1"


class TestDrawing:
    def test_more_than_there_is_ends(self):
        """A sampler that drops incomplete batches would look for one for ever."""
        rows = list(mini_batches(frames(3), Phase(iterations=2), 100, 9))
        assert [sorted(each) for each in rows] == [[0, 1, 2]] * 2

    def test_on_the_stream_everything_once_whatever_is_asked(self):
        assert [each.tolist() for each in mini_batches(frames(3), Phase(7, on_stream=True), 2, 9)] == [[0, 1, 2]]
        assert [each.tolist() for each in split_groups(3, STREAM, 2)] == [[0, 1, 2]]

    @pytest.mark.parametrize(
        ("count", "iterations", "size", "sizes"),
        [
            (20, None, 10, (10, 10)),
            (21, None, 10, (10, 10)),
            (22, None, 10, (10, 10, 2)),
            (1, None, 10, (1,)),
            (25, 5, 10, (10, 10, 5, 10, 10)),
            (3, None, 1, (1, 1, 1)),  # every group is a single frame, so the last one counts too
        ],
    )
    def test_groups_of_frames(self, count, iterations, size, sizes):
        assert tuple(map(len, split_groups(count, Phase(iterations), size))) == sizes
