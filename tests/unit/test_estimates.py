"""The table of estimated accuracies: its rows, its errors, its figure and claims."""

from __future__ import annotations

import learning_factory as factory
import numpy as np
import pytest
import torch
from claims_factory import ask, measured, word
from figures_factory import hidden, lines, panel_of, show, texts
from loop_factory import CHECKED, COST, FPS, FixedMember, rows, run, uploads
from tables_factory import Made, run_row
from torch import nn

from driftlab.platform.adaptation.agreement import accuracy_from, agreement_of
from driftlab.platform.core.records import AccuracyEstimates, Passes, TaskCost, TrialScores
from driftlab.platform.core.registry import Member
from driftlab.platform.results.figures import estimates as figure
from driftlab.platform.results.relations.estimates import phases
from driftlab.platform.scaling.base import Profile
from driftlab.platform.scheduling.base import Allocation, Grant, Scheduling, TrainingConfig, TrainingOffer
from driftlab.platform.scheduling.ekya import Ekya, predict_accuracy
from driftlab.platform.sim.setting import BuiltNetwork
from driftlab.platform.world.cost import task_cost

FOUND = AccuracyEstimates((0.3, 0.6), (0.5, 0.6), (0.8, 0.7), Passes((20,)), Passes((20,) * 5, (20,) * 4))
ESTIMATING = Member("adaptation", "elasticdnn", (("estimates", 4),))


class Chooser(Scheduling):
    """Choose a given configuration after trials of all; while it is trained, the grants name the first."""

    def __init__(self, config: int | None) -> None:
        self.config = config

    def initial_trials(self, configs: int) -> range:
        return range(configs)

    def allocate(self, window):
        offered = any(one.learning and one.learning.state == "offered" for one in window.demands)
        config = self.config if offered or self.config is None else 0
        return Allocation((Grant(0.6, training_share=0.4, config=config),) * len(window.demands))


def estimated(config: int | None):
    """Run two networks that are estimated, of which one is chosen."""
    session = factory.on_device(estimate=lambda node, phase: FOUND, switch=lambda node, variant: variant)
    profile = tuple(Profile(name, None, 100, COST) for name in ("small", "large"))
    student = BuiltNetwork("tiny", profile, "digest", "the student's weights")
    given = {"adaptation": ESTIMATING, "scheduling": FixedMember(Chooser(config)), "student": student}
    return run(factory.OnDevice(uploads(5.0)), session=session, **given)


class TestRows:
    def test_every_estimate_is_a_row_and_the_trained_one_is_checked(self):
        _, loop = estimated(1)
        small, large = rows(loop, "estimates")
        assert [(one["config"], one["size"], one["before"], one["after"], one["chosen"]) for one in (small, large)] == [
            ("small", 0.3, 0.5, 0.8, False),
            ("large", 0.6, 0.6, 0.7, True),
        ]
        assert small["true_after"] is None and small["observed_before"] is None
        assert (large["true_before"], large["true_after"]) == CHECKED.true
        assert (large["observed_before"], large["observed_after"]) == CHECKED.confident
        assert (large["agreement_before"], large["agreement_after"]) == CHECKED.agreeing
        assert large["isolated_s"] == pytest.approx(task_cost(COST, factory.PHONE, FOUND.passes).isolated_s)

    def test_the_check_comes_after_the_phase_on_later_frames(self):
        """The learner never has a truth while it trains."""
        session, _ = estimated(1)
        verbs = [note.verb for note in session.notes if note.verb in ("train", "sample_with_truth", "check")]
        assert verbs == ["train", "sample_with_truth", "check"]
        (sampled,) = [plan.times_s for plan in uploads(5.0)]
        (later,) = session.of("sample_with_truth")
        assert later.args[0] == pytest.approx([sampled[-1] + k / FPS for k in range(len(sampled) + 1)])

    def test_a_declined_offer_has_estimates_and_no_check(self):
        session, loop = estimated(None)
        assert not session.of("check") and not session.of("train")
        assert [one["chosen"] for one in rows(loop, "estimates")] == [False, False]

    def test_trials_are_estimates(self):
        work = Passes((4,), (4,))
        tried = TrialScores(0.5, (0.7, 0.8), (work, work), Passes((5,)))
        session = factory.on_device(run_trials=lambda node, plan, phases: tried)
        distill = Member("adaptation", "distill", (("step_choices", (10, 20)),))
        given = {"adaptation": distill, "scheduling": FixedMember(Chooser(0)), **factory.TEACHER}
        _, loop = run(factory.OnDevice(uploads(5.0)), session=session, **given)
        found = rows(loop, "estimates")
        assert [(one["method"], one["before"], one["after"], one["variant"]) for one in found] == [
            ("trials", 0.5, 0.7, None),
            ("trials", 0.5, 0.8, None),
        ]
        costs = [task_cost(COST, factory.PHONE, passes).isolated_s for passes in (Passes((5,)), work, work)]
        assert found[0]["isolated_s"] == pytest.approx(sum(costs))


@pytest.mark.slow
def test_ekya_plans_by_extrapolated_trials():
    long = TaskCost({"accelerator": 2.0})
    configs = tuple(TrainingConfig("s", long, accuracy=one, trial_fraction=1 / 6) for one in (0.7, None))
    found = Ekya().expected_accuracies(TrainingOffer("offered", configs, accuracy_before=0.5))
    assert found == (pytest.approx(float(predict_accuracy(0.5, [(5.0, 0.7)], [30.0])[0])), None)
    assert found[0] > 0.7


class TestAgreement:
    def test_diverse_predictions_count_as_they_agree(self):
        even = np.full(10, 0.1)
        assert accuracy_from(0.8, even) == pytest.approx(0.8)
        half = np.array([0.2] * 5 + [0.0] * 5)
        assert accuracy_from(0.8, half) == pytest.approx(1 - 0.2 / np.log10(5) ** 3)
        collapsed = np.array([0.91, *[0.01] * 9])
        assert accuracy_from(0.8, collapsed) == pytest.approx(0.1)  # an error is at most 1 - 1 / classes

    def test_a_head_is_compared_with_itself_under_dropout(self):
        images = np.random.default_rng(0).integers(0, 256, (40, 4, 4, 3), dtype=np.uint8)
        torch.manual_seed(1)
        linear = nn.Sequential(nn.Flatten(), nn.Linear(48, 6))

        def found(network: nn.Module) -> float | None:
            return agreement_of(network, images, np.random.default_rng(0))

        plain = found(linear)
        assert plain is not None and 0.2 < plain < 0.9 and found(linear) == plain
        linear[1].bias.data += 0.2 * torch.randn(6)
        linear[1].weight.data *= 1e-3  # dropped features no longer count, and neither does diversity
        assert found(linear) == pytest.approx(1.0)
        assert found(nn.Sequential(nn.Flatten(), nn.Linear(48, 3))) is None and found(nn.Conv2d(3, 6, 1)) is None


# Errors ---------------------------------------------------------------------------------------------------------------

SYSTEMS = {
    "elasticdnn": ("elasticdnn", {"estimates": 20, "estimator": "fitted", "calibration": "difference"}, 0.05),
    "uncalibrated": ("elasticdnn", {"estimates": 20, "estimator": "fitted", "calibration": "none"}, 0.10),
    "as-printed": ("elasticdnn", {"estimates": 20, "estimator": "fitted", "calibration": "as_printed"}, 0.15),
    "ekya": ("distill", {}, 0.25),
}
TRUE = (0.4, 0.6, 0.9)  # accuracy after adapting in three domains


def made() -> Made:
    """Return a run in which each system's estimates have one error, and trials cost eight times as much."""
    runs, found, variants, systems = [], [], [], []
    for name, (member, settings, error) in SYSTEMS.items():
        scheduling = "ekya" if name == "ekya" else "elasticdnn"
        systems.append(
            {"name": name, "base": "no_custom", "adaptation": {"name": member, **settings}, "scheduling": scheduling}
        )
        for seed in (0, 1, 2):
            row = run_row(name, seed, "a")
            runs.append(row)
            place = {"cell": row["cell"], "device": "d", "app": "x"}
            variants.append({**place, "variant": 0, "accuracy": 0.95, "memory_bytes": 100})
            for k, true in enumerate(TRUE):
                own = {**place, "time_s": 60.0 * k, "domain": k, "config": "one", "variant": 0, "size": 0.5}
                own |= {"method": "trials" if name == "ekya" else "estimator", "chosen": True}
                own |= {"isolated_s": 8.0 if name == "ekya" else 1.0, "memory_bytes": 400 if name == "ekya" else 200}
                own |= {"before": 0.3, "true_before": 0.35, "after": true - error - 0.001 * seed, "true_after": true}
                own |= {"observed_after": true + 0.02, "agreement_after": true - 0.12}
                found += [own, {**own, "variant": 1, "config": "two", "chosen": False, "true_after": None}]
    return Made({"systems": systems}, runs=runs, estimates=found, variants=variants)


MADE = made()


@pytest.mark.parametrize(
    ("claim", "value"),
    [
        ("EST-1", 0.20),
        ("EST-2", (0.2 + 0.3) / 3 - 0.051),  # the best constant is 0.6
        ("EST-3", (0.55 + 0.35 + 0.05) / 3 - 0.051),
        ("EST-4", 0.12 - 0.051),
        ("EST-5", 0.05),
        ("EST-6", 0.10),
        ("EST-7", 8.0),
        ("EST-8", 5 / 3),
    ],
)
def test_a_claim_about_estimates_is_measured(claim, value):
    assert measured(ask(claim, MADE)).value == pytest.approx(value)
    assert word(claim, MADE) == "reproduced"


def test_only_trained_networks_have_errors():
    found = phases(MADE)
    assert len(found) == len(SYSTEMS) * 3 * len(TRUE) and set(found["config"]) == {"one"}
    assert hidden(figure, Made(runs=[run_row("elasticdnn")]))


def test_the_figure_compares_errors_with_controls():
    shown = show(figure, MADE)
    after, before, by_app, costs = map(texts, shown.grids)
    assert after["elasticdnn"] == ["5.1", "16.7", "31.7", "2.0", "12.0"]
    assert before["ekya"][0] == "5.0" and by_app["ekya"] == ["25.1"]
    assert costs["ekya"] == ["8 s", "0.0005 MB"]
    drawn = lines(panel_of(shown, "error after adapting, by phase"))
    assert sorted(len(x) for x, _ in drawn.values()) == [3] * len(SYSTEMS)


def test_gains_over_several_are_gains_over_their_mean():
    scores = {"elasticdnn": 0.8, "ekya": 0.5, "uniform": 0.6, "recl": 0.7, "drawn": 0.75}
    runs = [run_row(name, seed, "f", score=one + 0.01 * seed) for name, one in scores.items() for seed in (0, 1)]
    tables = Made(runs=runs)
    assert measured(ask("MANY-4", tables)).value == pytest.approx(0.25)
    assert measured(ask("MANY-5", tables)).value == pytest.approx(0.1)
    assert measured(ask("MANY-9", tables)).value == pytest.approx(0.05)
