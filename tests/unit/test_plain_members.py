"""A plain PyTorch class as a member: arguments, state, counted passes and restored state."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from adaptation_factory import content, settings_of
from tta_factory import STREAM, frames, state_of

from driftlab.errors import RequestError
from driftlab.platform.adaptation.base import EMPTY_PACK, Adaptation, Adapted, Phase
from driftlab.platform.core.records import Passes
from driftlab.platform.core.registry import FAMILIES, Member, parameters
from driftlab.platform.networks.architectures import build

TEXT = '''
import torch


class Mine:
    """Step along the entropy."""

    def __init__(self, rate: float = 1e-3, label="a"):
        self.rate, self.label, self.calls, self.optimiser, self.mean = rate, label, 0, None, None

    def adapt(self, model, frames):
        self.calls += 1
        if self.optimiser is None:
            self.optimiser, self.head = torch.optim.Adam(model.parameters(), self.rate), model.head
        model.train()
        outputs = model(frames)
        self.mean = outputs.detach().mean(dim=0) + torch.rand(4)
        self.optimiser.zero_grad()
        (outputs.square().mean() * FACTOR).backward()
        self.optimiser.step()
        RETURN
'''


def member(folder: Path, factor: str = "1.0", returned: str = "return outputs", **params):
    (folder / "mine.py").write_text(TEXT.replace("FACTOR", factor).replace("RETURN", returned))
    return Member("adaptation", f"{folder / 'mine.py'}:Mine", tuple(params.items())).make()


def calls(made, count: int = 3, *, travels: bool = False):
    model = build("tiny_classifier", 4, seed=0).eval()
    state, done = made.prepare(model), []
    for number in range(count):
        if travels:
            made, model, state = pickle.loads(pickle.dumps((made, model, state)))
        done.append(made.adapt(model, state, frames(6, number), STREAM))
        state = done[-1].state
    return model, done


def test_its_arguments_are_parameters(tmp_path: Path):
    made = member(tmp_path, rate=1)
    found = parameters(type(made))
    assert found["rate"] == (float, 1e-3) and found["label"] == (str, "a") and found["stream_batch"][1] == 32
    assert made.rate == 1.0 and made.labels == "none"
    with pytest.raises(RequestError, match="did you mean 'rate'"):
        member(tmp_path, rat=1.0)


def test_an_argument_that_is_also_a_parameter_of_all_members_keeps_its_choices(tmp_path: Path):
    (tmp_path / "own.py").write_text(TEXT.replace('label="a"):', 'label="a", predict_on: str = "batch"):'))
    own = f"{tmp_path / 'own.py'}:Mine"
    assert Member("adaptation", own).make().predict_on == "batch"
    with pytest.raises(RequestError, match="'predict_on' is 'bathc', expected one of 'frame', 'batch'"):
        Member("adaptation", own, (("predict_on", "bathc"),)).make()


def test_an_argument_that_is_also_a_parameter_of_all_members_keeps_its_range(tmp_path: Path):
    (tmp_path / "own.py").write_text(TEXT.replace('label="a"):', 'label="a", stream_batch: int = 16):'))
    own = f"{tmp_path / 'own.py'}:Mine"
    assert Member("adaptation", own).make().stream_batch == 16
    with pytest.raises(RequestError, match=r"'stream_batch' is 0, must be in \[1, 4096\]"):
        Member("adaptation", own, (("stream_batch", 0),)).make()


@pytest.mark.parametrize(
    ("declared", "fault"),
    [
        ("stream_batch: int = 0", r"'stream_batch' is 0, must be in \[1, 4096\]"),
        ("stream_batch='many'", "'stream_batch' is declared as str, must be int as in the base"),
        ("predict_on='bathc'", r"'predict_on' is 'bathc', must be frame \| batch"),
        ("predict_on=1", r"'predict_on' is 1, must be frame \| batch"),
    ],
)
def test_a_default_outside_the_range_of_the_base_is_refused(tmp_path: Path, declared: str, fault: str):
    (tmp_path / "own.py").write_text(TEXT.replace('label="a"):', f'label="a", {declared}):'))
    with pytest.raises(RequestError, match=fault):
        Member("adaptation", f"{tmp_path / 'own.py'}:Mine").make()


def test_it_trains_and_its_passes_are_counted(tmp_path: Path):
    model, done = calls(member(tmp_path))
    assert done[0].passes.forward == done[0].passes.backward == (6,)
    assert done[0].passes.trained[0] == "first.0" and done[0].passes.trained[-1] == "head"
    assert done[0].passes.kept_bytes > 2 * sum(value.nbytes for value in model.state_dict().values())
    assert done[0].changed.any() and len(done[0].predictions) == 6


def test_its_state_is_pickled_and_moments_and_random_numbers_continue(tmp_path: Path):
    (ours, here), (theirs, there) = calls(member(tmp_path)), calls(member(tmp_path), travels=True)
    assert state_of(ours) == state_of(theirs)
    assert content(here[-1].state) == content(there[-1].state)
    assert here[0].state.kept != here[1].state.kept


def test_adapt_keeps_the_state_passed_in_and_reset_restores_the_first(tmp_path: Path):
    made, model = member(tmp_path), build("tiny_classifier", 4, seed=0).eval()
    state, before, settings = made.prepare(model), state_of(model), settings_of(model)
    kept = pickle.dumps(state)
    done = made.adapt(model, state, frames(6), STREAM)
    assert pickle.dumps(state) == kept and settings_of(model) == settings
    assert content(made.reset(model, done.state)) == content(state) and state_of(model) == before
    assert made.adapt(model, state, frames(6), Phase(0)).skipped


def test_numbers_that_are_not_finite_are_undone(tmp_path: Path):
    made, model = member(tmp_path, factor="float('nan')"), build("tiny_classifier", 4, seed=0).eval()
    state, before = made.prepare(model), state_of(model)
    done = made.adapt(model, state, frames(6), STREAM)
    assert "not finite" in done.skipped and done.state is state and state_of(model) == before


def test_without_outputs_the_changed_network_predicts(tmp_path: Path):
    assert calls(member(tmp_path, returned=""), 1)[1][0].predictions is None


def test_global_random_numbers_of_others_stay(tmp_path: Path):
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    calls(member(tmp_path), 1)
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("class Mine:\n    def adapt(self, model): pass\n", "must be a subclass"),
        (
            "class Mine:\n    def __init__(self, rate): pass\n    def adapt(self, model, frames): pass\n",
            "default: rate",
        ),
    ],
)
def test_a_class_that_cannot_be_a_member_is_refused(tmp_path: Path, text: str, why: str):
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(RequestError, match=why):
        Member("adaptation", f"{tmp_path / 'mine.py'}:Mine").make()


class Bare(Adaptation):
    """A member with the methods that the base class requires, and no others."""

    labels = "none"

    def prepare(self, model, pack=EMPTY_PACK, *, go_on=None):
        return None

    def adapt(self, model, state, batch, phase):
        return Adapted(state, 1, passes=Passes((len(batch.images),)))

    def reset(self, model, state):
        return state


def test_a_direct_subclass_of_the_base_trains_on_the_stream():
    assert Bare().learns_on_stream and Bare().stream_batch == 32 and Bare().predict_on == "frame"
    phases_only = {name for name in FAMILIES["adaptation"] if not Member("adaptation", name).make().learns_on_stream}
    assert phases_only == {"frozen", "distill", "elasticdnn", "elasticdnn_cua", "elasticdnn_teacher"}
