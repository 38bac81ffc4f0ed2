"""Offers to a device's scheduler: the training configurations of a round, until it decides on them."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import simpy

from driftlab.platform.adaptation.base import Phase
from driftlab.platform.core.records import (
    AccuracyEstimates,
    Passes,
    TaskCost,
    TrialScores,
)
from driftlab.platform.scheduling.base import TrainingConfig, TrainingOffer
from driftlab.platform.sim.estimates import EstimateLog
from driftlab.platform.streaming.base import DownlinkPlan, choose_times
from driftlab.platform.world.clock import Process
from driftlab.platform.world.cost import add_costs

if TYPE_CHECKING:
    from driftlab.platform.sim.app import AppSim
    from driftlab.platform.sim.device import DeviceSim
    from driftlab.platform.sim.rounds import Steps, WeightRound


FORESEEN_S, FORESEEN_FPS = 60.0, 1.0  # later frames on which a bound scores trainings: those until the scene ends


@dataclass(frozen=True)
class Offer:
    """Training configurations to choose from; the round is sent the time, and reads `learner.config`."""

    training: TrainingOffer


@dataclass
class OfferQueue:
    """The offers of the applications of a device, until their scheduler has decided on them."""

    device: DeviceSim
    preparing: set[str] = field(default_factory=set)  # applications that label or run trials before an offer
    waiting: dict[str, simpy.Event] = field(default_factory=dict)  # by application: its offer waits for this

    @property
    def incomplete(self) -> bool:
        """Return whether the waiting offers wait for another application's offer."""
        return any(app.name in self.preparing for app in self.device.present)

    def submit(self, app: AppSim) -> Process:
        """Submit an offer to the scheduler: at once, or together with those that are being prepared."""
        processor, name = self.device.processor, app.spec.name
        self.preparing.discard(name)
        if not app.runner.scheduling.waits_for_all_offers:
            processor.share_out("offer")
            return
        decided = self.waiting[name] = processor.clock.event()
        processor.share_out("end" if self.incomplete else "offer")
        yield decided

    def release(self) -> None:
        """Resume the applications whose offers were decided, unless other offers are being prepared."""
        if self.incomplete:
            return
        for name in [app.name for app in self.device.present if app.name in self.waiting]:
            self.waiting.pop(name).succeed()


@dataclass(frozen=True)
class ChosenConfig:
    """The training configuration that a scheduler chose, with its expected accuracies."""

    phase: Phase
    config: str
    accuracy_before: float | None
    accuracy_after: float | None


class TrainingChoice:
    """The training configurations of one round on its device, with their costs and accuracies."""

    def __init__(self, done: WeightRound, plan: DownlinkPlan, frames: int) -> None:
        assert plan.phase is not None
        self.round, self.app, self.plan, self.planned, self.frames = done, done.app, plan, plan.phase, frames
        runner = done.app.runner
        self.adaptation, self.scheduling, self.site = runner.adaptation, runner.scheduling, done.app.learner.site
        self.cuts_per_domain = runner.scaling.cuts_per_domain  # whether a phase first cuts the network for its samples
        self.scores = runner.observes == "teacher"  # whether the learner scores its network, for the scheduler
        self.profile = done.app.networks.student.profile
        self.phases: Sequence[Phase] = ()
        self.configs: list[TrainingConfig] = []
        self.accuracy_before: float | None = None  # accuracy before the round
        self.chosen: int | None = None  # index of the configuration; calls for other applications change the learner's
        self.estimates = EstimateLog(self.app, None if done.stored is None else done.stored.domain)

    def choose(self) -> Generator[Any, float, ChosenConfig | None]:
        """Offer the configurations to the device's scheduler, after trials where it requires them."""
        learner = self.app.learner
        yield from self._prepare()
        yield from self._submit()
        while untried := [i for i in learner.trials if 0 <= i < len(self.configs) and self.configs[i].accuracy is None]:
            yield from self._run_trials(untried)
            yield from self._submit()
        learner.switch_network()  # the choice may have been of another network
        self.chosen = learner.config
        if learner.config is None or not 0 <= learner.config < len(self.phases):
            return None
        config = self.configs[learner.config]
        names = (self.round.training_config, config.name if len(self.configs) > 1 else "")
        self.round.training_config = "; ".join(filter(None, names)) or None
        return ChosenConfig(
            self.phases[learner.config],
            config.name,
            self.accuracy_before if config.before is None else config.before,
            config.accuracy,
        )

    @property
    def trained_config(self) -> int | None:
        """Return the index of the trained configuration: the chosen one, or the network in use."""
        if self.scheduling.uses_estimates or len(self.profile) < 2:
            return self.chosen
        return self.app.networks.student.first if self.app.choice.trains is None else self.app.choice.trains

    def _offer(self, before: float | None) -> TrainingOffer:
        return TrainingOffer("offered", tuple(self.configs), accuracy_before=before)

    def _submit(self) -> Steps:
        self.round.now_s = yield Offer(self._offer(self.accuracy_before))

    def _prepare(self) -> Steps:
        """List the configurations and the accuracy before them, as estimated or else from trials."""
        if self.adaptation.estimates and (yield from self._estimate()):
            return
        self.phases = self._offered_phases()
        self.configs = [self._config_of(phase) for phase in self.phases]
        every = self.scheduling.initial_trials(len(self.configs))
        recall = self.round.recall
        self.accuracy_before = None if recall is None else (yield from recall.start())
        if every or self.accuracy_before is None:
            self.accuracy_before = yield from self._run_trials(every)
        if self.scheduling.uses_true_gains:
            yield from self._foresee()

    def _foresee(self) -> Steps:
        """Offer the accuracies on later frames before and after each configuration, at no cost: a bound."""
        app, done = self.app, self.round
        stop_s = min(app.facts.duration_s, done.now_s + FORESEEN_S)
        times_s = choose_times(done.now_s, stop_s, fps=app.facts.fps, rate_fps=FORESEEN_FPS)
        if not times_s:
            return
        later = app.runner.session.call(app.node("device"), "sample_with_truth", times_s)
        found: TrialScores = yield from done.facts_of(done.call("foresee", tuple(self.phases), later))
        if found.before is not None:
            self.accuracy_before = found.before
            pairs = zip(self.configs, found.after, strict=True)
            self.configs = [replace(config, accuracy=after) for config, after in pairs]

    def _estimate(self) -> Steps:
        """Estimate every network of the family; return whether the offered configurations are estimates.

        Scaling goes by the estimates where it chooses among networks that are not cut for samples.
        """
        app, done, offered = self.app, self.round, self.scheduling.uses_estimates
        if not offered and (self.cuts_per_domain or len(self.profile) < 2):
            return False
        estimated: AccuracyEstimates | None = yield from done.facts_of(done.call("estimate", self.planned))
        if estimated is None:
            return False
        cost = self.site.training_cost(app.networks.student.cost, estimated.passes)
        yield from done.do("training", cost)
        app.choice.estimated = estimated.after
        columns = zip(self.profile, estimated.after, estimated.before, estimated.sizes, strict=True)
        configs = [
            TrainingConfig(
                one.name, self.site.training_cost(one.cost, estimated.phase_passes), after, before, size, variant=which
            )
            for which, (one, after, before, size) in enumerate(columns)
        ]
        accuracies = estimated.before, estimated.after
        self.estimates.add("estimator", done.now_s, cost, list(enumerate(configs)), accuracies)
        if not offered:
            return False
        runs = app.networks.student.first if app.choice.runs is None else app.choice.runs
        self.configs = configs
        self.phases = [replace(self.planned, variant=way.variant) for way in self.configs]
        self.accuracy_before = estimated.before[runs]
        return True

    def _run_trials(self, which: Sequence[int]) -> Steps:
        """Run trials and score the network, as the scheduler requires; return the accuracy before them."""
        app, done, site = self.app, self.round, self.site
        if not (which or self.scores):
            return None
        trials = tuple(shortened(self.phases[i], self.scheduling.trial_fraction)[0] for i in which)
        tried: TrialScores = yield from done.facts_of(done.call("run_trials", self.plan, trials))
        counted = ((None, tried.scoring_passes), *zip((phase.variant for phase in trials), tried.passes, strict=True))
        costs = [site.training_cost(app.cost_of(variant), passes) for variant, passes in counted]
        cost = add_costs(costs)
        yield from done.do("training", cost)
        if self.scores and tried.before is not None and not done.outdated:
            app.observe(tried.before, "teacher", done.now_s)
        begins = tried.initial_scores or (None,) * len(which)
        fixed_passes = zip(trials, tried.fixed_passes or (Passes(),) * len(which), strict=True)
        fixed = [site.training_cost(app.cost_of(phase.variant), passes) for phase, passes in fixed_passes]
        for i, after, begin, *trial in zip(which, tried.after, begins, costs[1:], fixed, strict=True):
            self.configs[i] = measured(replace(self.configs[i], accuracy=after), begin, *trial)
        if which:
            expected = self.scheduling.expected_accuracies(self._offer(tried.before))
            initial = [tried.before if begin is None else begin for begin in begins]
            accuracies = initial, [expected[i] for i in which]
            self.estimates.add("trials", done.now_s, cost, [(i, self.configs[i]) for i in which], accuracies)
        return tried.before

    def _offered_phases(self) -> Sequence[Phase]:
        """List the phases to choose from; where networks are cut for samples, of every size."""
        phases, sizes = self.adaptation.training_configs(self.planned), range(len(self.profile))
        if not self.cuts_per_domain or len(sizes) < 2:
            return phases
        return [replace(phase, variant=variant) for variant in sizes for phase in phases]

    def _config_of(self, phase: Phase) -> TrainingConfig:
        """Describe a phase with its cost, as far as that is known in advance."""
        name, size = f"{phase.iterations or 'usual'} steps", None
        if phase.variant is not None:
            size = self.profile[phase.variant].cost.macs / self.profile[-1].cost.macs
            name = f"{self.profile[phase.variant].name}, {name}"
        passes = self.adaptation.passes_of(phase, self.frames) or Passes()
        cost = self.site.training_cost(self.app.cost_of(phase.variant), passes)
        fraction = shortened(phase, self.scheduling.trial_fraction)[1]
        return TrainingConfig(
            name,
            cost,
            size=size,
            trial_fraction=fraction,
            variant=phase.variant,
        )


def measured(config: TrainingConfig, before: float | None, trial: TaskCost, fixed: TaskCost) -> TrainingConfig:
    """Add the results of a trial: its network's initial accuracy, and its cost if that was unknown.

    A part of the trial's cost is the same for any number of steps.
    """
    if config.cost.isolated_s:
        return replace(config, before=before)

    def whole(trial: float, fixed: float) -> float:
        return fixed + (trial - fixed) / config.trial_fraction

    seconds = {engine: whole(each, fixed.seconds.get(engine, 0.0)) for engine, each in trial.seconds.items()}
    return replace(config, before=before, cost=TaskCost(seconds, trial.memory_bytes, whole(trial.joules, fixed.joules)))


def shortened(phase: Phase, part: float) -> tuple[Phase, float]:
    """Return a phase of a part of the steps, and that part exactly; a phase of unknown length stays whole."""
    if phase.iterations is None or part >= 1:
        return phase, 1.0
    steps = max(1, round(part * phase.iterations))
    return replace(phase, iterations=steps), steps / phase.iterations
