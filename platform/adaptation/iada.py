"""IADA: adversarial alignment of features with a generator of source features.

Differs from the paper: its text was not at hand, but a summary and a third party's code; one network is the encoder of
every domain in turn; nets and steps are those for small features; the sign is the one that does not saturate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge

from driftlab.platform.adaptation.base import EMPTY_PACK, Batch
from driftlab.platform.adaptation.batches import ONE_FRAME, Rows, frames_reject, source_passes
from driftlab.platform.adaptation.learn import LossDescent
from driftlab.platform.adaptation.memory import as_tensors, below, under
from driftlab.platform.core.parameters import Means
from driftlab.platform.core.records import Weights
from driftlab.platform.networks.heads import linear_head
from driftlab.platform.networks.training.descent import Adam, Optimiser

if TYPE_CHECKING:
    import torch
    from torch import nn

    from driftlab.platform.adaptation.run import LearningRun
    from driftlab.platform.networks.training.training_loop import DataSplits

NOISE, HIDDEN = 32, 64  # inputs of the generator, and units in the hidden layer of both small networks
SOURCE_FRAMES = 512  # frames of the source from which the generator learns; ours
DISCRIMINATOR_LEARNING_RATE = 1e-3  # step size of discriminator and generator: Adam's default
DISCRIMINATOR = "tells"  # its name among the arrays, which enter digests


@dataclass(frozen=True)
class Iada(LossDescent):
    """Train features against a discriminator, with generated features of the source."""

    batch: Annotated[int, Ge(2), Means("frames of a step in a phase", "frames")] = 32
    learning_rate: Annotated[float, Ge(0), Means("step size of the features")] = 1e-4
    adversarial_weight: Annotated[float, Ge(0), Means("weight of the adversarial term in the loss")] = 1.0
    source_steps: Annotated[int, Ge(0), Means("steps in which the generator learns the source")] = 400

    tasks, has_source_summary = ("classification",), True

    def summarise_source(self, model: nn.Module, data: DataSplits) -> Weights:
        """Return a generator of source features, and the discriminator that it learned against."""
        import torch

        if data.task.name not in self.tasks or not linear_head(model):
            return EMPTY_PACK
        real = source_passes(model, data.train.images[:SOURCE_FRAMES], self.batch).features
        with torch.random.fork_rng(devices=()):
            torch.default_generator.manual_seed(data.seed)
            return self.imitate(real.float())

    def imitate(self, real: torch.Tensor) -> Weights:
        """Train generator and discriminator against each other on features."""
        import torch

        width, positive = real.shape[1], bool((real >= 0).all())
        source_net, judge = generator(width, positive=positive).to(real.device), discriminator(width).to(real.device)
        discriminator_step, generator_step = (
            Optimiser(net.parameters(), Adam(DISCRIMINATOR_LEARNING_RATE)) for net in (judge, source_net)
        )
        for _ in range(self.source_steps):
            rows = torch.randint(len(real), (min(self.batch, len(real)),))
            made = source_net(torch.randn(len(rows), NOISE).to(real.device))  # of one generator, on any device
            _descend(discriminator_step, apart(judge, real[rows], made.detach()))
            _descend(generator_step, deceived(judge, made))
        return {
            "positive": np.array(positive),
            **under("makes", source_net.state_dict()),
            **under(DISCRIMINATOR, judge.state_dict()),
        }

    def begin(self, model: nn.Module, pack: Weights) -> Weights:
        return under(DISCRIMINATOR, below(DISCRIMINATOR, pack))

    def reject_reason(self, model: nn.Module, batch: Batch, state: Any) -> str:
        if why := frames_reject("IADA", batch):
            return why
        if not state.pack:
            return "there is no generator of source features"
        return ONE_FRAME if len(batch.images) == 1 else ""

    def rule(self) -> Adam:
        return Adam(self.learning_rate)

    def start(self, run: LearningRun) -> str:
        """Build generator and discriminator, and an optimiser of the latter."""
        import torch

        given, own = as_tensors(below("makes", run.pack)), as_tensors(below(DISCRIMINATOR, run.held))
        width = own["0.weight"].shape[1]
        with torch.random.fork_rng(devices=()):  # a new net draws weights, which these then replace
            source_net, judge = generator(width, positive=bool(run.pack["positive"])), discriminator(width)
        source_net.load_state_dict(given)
        judge.load_state_dict(own)
        optimiser = Optimiser(judge.to(run.device).parameters(), Adam(DISCRIMINATOR_LEARNING_RATE))
        run.notes.update(source_net=source_net.to(run.device), judge=judge, optimiser=optimiser)
        return super().start(run)

    def next_state(self, run: LearningRun, *, carries: bool) -> Any:
        run.held = under(DISCRIMINATOR, run.notes["judge"].state_dict())
        return super().next_state(run, carries=carries)

    def loss(self, run: LearningRun, rows: Rows) -> torch.Tensor:
        """Make a step of the discriminator, and return the loss of the features against it."""
        import torch

        source_net, judge = run.notes["source_net"], run.notes["judge"]
        found = run.features(run.inputs(rows)).features
        noise = run.batch.rng.standard_normal((len(rows), NOISE))
        with torch.no_grad():
            made = source_net(torch.tensor(noise, dtype=found.dtype, device=found.device))
        _descend(run.notes["optimiser"], apart(judge, made, found.detach()))
        return self.adversarial_weight * deceived(judge, found)


def generator(width: int, *, positive: bool) -> nn.Module:
    """Return a network that maps noise to features, non-negative ones where the source's are."""
    from torch import nn

    last = nn.ReLU() if positive else nn.Identity()
    return nn.Sequential(nn.Linear(NOISE, HIDDEN), nn.LeakyReLU(0.2), nn.Linear(HIDDEN, width), last)


def discriminator(width: int) -> nn.Module:
    """Return a network that separates features of the source (above 0) from others."""
    from torch import nn

    return nn.Sequential(nn.Linear(width, HIDDEN), nn.LayerNorm(HIDDEN), nn.LeakyReLU(0.2), nn.Linear(HIDDEN, 1))


def apart(judge: nn.Module, source: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the discriminator's loss: -log D(source) - log(1 - D(other))."""
    from torch.nn import functional as F

    return F.softplus(-judge(source)).mean() + F.softplus(judge(other)).mean()


def deceived(judge: nn.Module, other: torch.Tensor) -> torch.Tensor:
    """Return the adversarial loss of features: -log D(other)."""
    from torch.nn import functional as F

    return F.softplus(-judge(other)).mean()


def _descend(optimiser: Optimiser, loss: torch.Tensor) -> None:
    """Make a step of the parameters of one network only."""
    import torch

    optimiser.zero_grad()
    torch.autograd.backward(loss, inputs=optimiser.parameters)
    optimiser.step()
