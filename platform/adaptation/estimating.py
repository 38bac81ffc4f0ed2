"""The data of ElasticDNN's accuracy estimator: its fit, its pack, and the history of domains.

Pseudo-domains shift frames of the source by corruptions that tests leave out. Every network of the family is cut for a
hundred frames of each, judged on others, retrained and judged again. Nothing flows back into the family.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from driftlab.datasets.domains.orders import Domain
from driftlab.platform.adaptation import estimator
from driftlab.platform.adaptation.base import Adaptation, Batch, Phase
from driftlab.platform.adaptation.estimator import DomainSummary, Estimator, Floats, Observation, Projection
from driftlab.platform.adaptation.memory import ElasticState
from driftlab.platform.core.records import Weights
from driftlab.platform.core.seeding import rng_for
from driftlab.platform.scaling.base import Budget, Scaling

if TYPE_CHECKING:
    from torch import nn

    from driftlab.platform.networks.training.training_loop import DataSplits, LabelledFrames

SHIFTS = ("speckle_noise", "gaussian_blur", "spatter", "saturate")  # made for choosing settings, not for tests
SEVERITIES, SAMPLES, JUDGED = 5, 100, 300
PASS_FRAMES = 64
Calibration = Literal["difference", "as_printed", "none"]
MADE = "estimator/"  # before the names of arrays in a pack


@dataclass(frozen=True, eq=False)
class DomainHistory:
    """Earlier domains, with accuracies at the size that ran there, and the estimates for the present one."""

    digest_name: ClassVar[str] = "DomainHistory"

    means: Floats = field(default_factory=lambda: np.empty((0, 0)))  # of the source network's features, by domain
    seen: Floats = field(default_factory=lambda: np.empty((0, 4)))  # observed before and after, and as predicted
    here: Floats = field(default_factory=lambda: np.empty(0))
    predicted: Floats = field(default_factory=lambda: np.empty((0, 2)))  # for each size, without calibration

    def observe(self, size: int, before: float, after: float) -> DomainHistory:
        """Return the history with the present domain appended; without estimates it is unchanged."""
        if not len(self.here):
            return self
        means = self.here[None] if not len(self.means) else np.concatenate([self.means, self.here[None]])
        seen = np.concatenate([self.seen, [[before, after, *self.predicted[size]]]])
        return DomainHistory(means, seen)


@dataclass(frozen=True, eq=False)
class EstimatorState(ElasticState):
    """The state of a member that estimates accuracies: its estimator and the history of domains."""

    digest_name = "EstimatingMemory"

    pack: Weights = field(default_factory=dict)
    history: DomainHistory = field(default_factory=DomainHistory)


@dataclass(frozen=True, eq=False)
class Estimating:
    """Data for estimates on a device: fitted network, features of the source, sizes of the family."""

    network: Estimator
    source: DomainSummary
    projection: Projection
    parameters: Floats  # of each network of the family, from the smallest on
    whole: float  # parameters of the source network
    thresholds: Floats  # confidence above which a prediction counts as right, for each network
    graded: Floats | None = None  # accuracy of each on the source, where networks are not cut for samples

    @property
    def sizes(self) -> Floats:
        return self.parameters / self.whole

    @property
    def marks(self) -> Floats:
        """Return the estimator's input per network: its size, or its source accuracy for other operators."""
        return self.sizes if self.graded is None else self.graded

    def size_of(self, model: nn.Module) -> int:
        """Return the index of the family's network with as many parameters."""
        return int(np.abs(self.parameters - count_parameters(model)).argmin())

    def predict(
        self, history: DomainHistory, features: npt.NDArray[np.floating], calibration: Calibration = "difference"
    ) -> tuple[Floats, DomainHistory]:
        """Return both accuracies of each network for a domain, calibrated by the history."""
        here = estimator.summarise(features)
        rows = [estimator.describe(mark, here, self.source, self.projection) for mark in self.marks]
        predicted = self.network(np.array(rows))
        printed = calibration == "as_printed"
        seen = [
            Observation(self._distance(here, mean), one[0], one[1], None if printed else (one[2], one[3]))
            for mean, one in zip(history.means, history.seen, strict=True)
        ]
        found = predicted if calibration == "none" else estimator.calibrate(predicted, seen, scaled=not printed)
        if self.graded is not None:  # far from its domains the estimator predicts high accuracies for all networks
            found = np.minimum(found, self.graded[:, None])  # no domain is easier than the source
        return found, replace(history, here=here.mean, predicted=predicted)

    def _distance(self, here: DomainSummary, mean: Floats) -> float:
        return estimator.distance(here, DomainSummary(mean, here.variance), self.source)

    def store(self) -> Weights:
        """Return plain arrays by name."""
        layers = {f"layer/{number:02d}": value for number, value in enumerate(self.network.weights)}
        arrays = {
            **layers,
            "inputs": np.stack([self.network.mean, self.network.deviation]),
            "errors": np.array(self.network.errors),
            "source": np.stack([self.source.mean, self.source.variance]),
            "centre": self.projection.mean,
            "axes": self.projection.axes,
            "parameters": self.parameters,
            "whole": np.array([self.whole]),
            "thresholds": self.thresholds,
            **({} if self.graded is None else {"graded": self.graded}),
        }
        return {MADE + name: np.asarray(value) for name, value in arrays.items()}


def restore(pack: Weights) -> Estimating | None:
    """Restore an estimator from a pack; None where the pack has none."""
    found: Mapping[str, Any] = {name.removeprefix(MADE): value for name, value in pack.items() if name.startswith(MADE)}
    if not found:
        return None
    layers = tuple(found[name] for name in sorted(found) if name.startswith("layer/"))
    errors = float(found["errors"][0]), float(found["errors"][1])
    return Estimating(
        Estimator(layers, found["inputs"][0], found["inputs"][1], errors),
        DomainSummary(*found["source"]),
        Projection(found["centre"], found["axes"]),
        found["parameters"],
        float(found["whole"][0]),
        found["thresholds"],
        found.get("graded"),
    )


def source_features(source: nn.Module, batch: Batch) -> npt.NDArray[np.float32]:
    """Return the features of all frames of a batch by the source network."""
    return _passed(source, batch)[0]


def confidences(source: nn.Module, batch: Batch) -> npt.NDArray[np.float32]:
    """Return the largest probability of each prediction."""
    outputs = _passed(source, batch)[1]
    shifted = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    return np.asarray(1 / shifted.sum(axis=1))


def _passed(model: nn.Module, batch: Batch) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    import torch

    from driftlab.platform.adaptation.batches import device_inputs
    from driftlab.platform.networks.features import features
    from driftlab.platform.networks.predict import evaluating

    found = []
    with evaluating(model), torch.inference_mode():
        for start in range(0, len(batch.images), PASS_FRAMES):
            rows = np.arange(start, min(start + PASS_FRAMES, len(batch.images)))
            found.append(features(model, device_inputs(model, batch, rows)))
    parts = ([getattr(each, what).cpu().numpy() for each in found] for what in ("features", "outputs"))
    made, outputs = (np.concatenate(part) for part in parts)
    return made, outputs


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


# Offline --------------------------------------------------------------------------------------------------------------


def learn_estimator(member: Adaptation, scaling: Scaling, family: Any, data: DataSplits, domains: int) -> Estimating:
    """Fit the estimator to the accuracies of all networks of a family on pseudo-domains."""
    source, profile = scaling.source(family), scaling.profile(family, data.size)
    count = len(profile)
    graded = None if scaling.cuts_per_domain else np.array([one.accuracy or 0.0 for one in profile])
    networks = [scaling.select(family, Budget(variant=which)) for which in range(count)]
    parameters = np.array([count_parameters(network) for network in networks], dtype=np.float64)
    given = Batch(data.train.images, None, rng_for(data.seed, "estimator"), data.task)
    features = source_features(source, given)
    summary, projection = estimator.summarise(features), estimator.fit_projection(features)
    whole = float(count_parameters(getattr(family, "network", source)))
    marks = parameters / whole if graded is None else graded
    inputs, reached, numbers = list[Floats](), list[tuple[float, float]](), list[int]()
    for number, domain in enumerate(pseudo_domains(domains)):
        batch, judged = _shifted(data, domain, number)
        here = estimator.summarise(source_features(source, batch))
        for which in range(count):
            inputs.append(estimator.describe(marks[which], here, summary, projection))
            reached.append(_retrained(member, scaling, family, Budget(variant=which), (batch, judged, data)))
            numbers.append(number)
    network = estimator.fit_estimator(np.array(inputs), np.array(reached), numbers, data.seed)
    thresholds = np.array([_threshold(network, data) for network in networks])
    return Estimating(network, summary, projection, parameters, whole, thresholds, graded)


def pseudo_domains(count: int) -> list[Domain]:
    """List shifts in turn, each at a higher severity in every round."""
    return [Domain(SHIFTS[k % len(SHIFTS)], 1 + k // len(SHIFTS) % SEVERITIES) for k in range(count)]


def _shifted(data: DataSplits, domain: Domain, number: int) -> tuple[Batch, LabelledFrames]:
    """Return frames to adapt on, of the training part, and frames to judge by, of the validation part."""
    from driftlab.datasets.domains.shifts import shifted
    from driftlab.platform.networks.training.training_loop import LabelledFrames

    rng = rng_for(data.seed, "estimator", number)
    rows = rng.permutation(len(data.train))[:SAMPLES]
    images, judged = data.train.images[rows], data.val.first(JUDGED)
    seen, other = (np.stack([shifted(each, domain, rng) for each in part]) for part in (images, judged.images))
    return Batch(seen, None, rng, data.task), LabelledFrames(other, judged.labels)


def _retrained(
    member: Adaptation, scaling: Scaling, family: Any, budget: Budget, parts: tuple[Batch, LabelledFrames, DataSplits]
) -> tuple[float, float]:
    """Return the accuracy of a network that was cut for a domain, before and after it was retrained."""
    from driftlab.platform.networks.training.training_loop import grade

    batch, judged, data = parts
    mask = scaling.select_channels(family, budget, batch.images, data.task)
    network = scaling.select(family if mask is None else scaling.apply_mask(family, budget, mask), budget)
    before = grade(network, data, judged)
    member.adapt(network, member.prepare(network), batch, Phase())
    return before, grade(network, data, judged)


def _threshold(network: nn.Module, data: DataSplits) -> float:
    from driftlab.platform.networks.training.training_loop import grade

    judged = data.val.first(JUDGED)
    found = confidences(network, Batch(judged.images, None, rng_for(0), data.task))
    return estimator.fit_threshold(found, grade(network, data, judged))


def observed_shares(estimating: Estimating, model: nn.Module, outputs: Sequence[Any]) -> tuple[int, float, float]:
    """Return the network's index, and the shares of confident predictions before and after a phase."""
    which = estimating.size_of(model)
    before, after = (
        estimator.confident_share(each.softmax(dim=1).cpu().numpy(), float(estimating.thresholds[which]))
        for each in outputs
    )
    return which, before, after
