"""A controller: a recurrent network that makes one choice after another, and learns which from rewards (REINFORCE).

Each choice is drawn from probabilities that depend on those before it. A reward above the moving average of earlier
ones makes the choices that earned it more likely (Zoph and Le, ICLR 2017; ENAS trains its controller the same way).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import nn

Choices = tuple[int, ...]
UNITS = 32
SPREAD = 0.08  # of the first weights: all choices are about equally likely
DECAY = 0.95  # of the moving average of rewards
ENTROPY_WEIGHT = 1e-4  # of the loss


class Controller(nn.Module):
    """An LSTM with an output for each choice; its arithmetic is double, so that draws repeat on other machines."""

    def __init__(self, counts: Sequence[int], seed: int, rate: float) -> None:
        with torch.random.fork_rng(devices=()):
            super().__init__()
            self._firsts = np.cumsum([1, *counts]).tolist()  # row of each choice's first option; row 0 begins
            self.embedding = nn.Embedding(1 + sum(counts), UNITS)
            self.cell = nn.LSTMCell(UNITS, UNITS)
            self.outputs = nn.ModuleList(nn.Linear(UNITS, count) for count in counts)
            self.double()
            torch.default_generator.manual_seed(seed)
            for parameter in self.parameters():
                nn.init.uniform_(parameter, -SPREAD, SPREAD)
        self._walk = torch.optim.Adam(self.parameters(), lr=rate)
        self.baseline: float | None = None

    def draw(self, rng: np.random.Generator) -> Choices:
        """Make all choices, each by its probabilities."""

        def drawn(which: int, log_odds: torch.Tensor) -> int:
            return int(np.searchsorted(np.cumsum(log_odds[:-1].exp().numpy()), rng.random(), side="right"))

        with torch.no_grad():
            return tuple(one for one, _ in self._steps(drawn))

    def forward(self, choices: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logarithm of the probability of some choices, and the entropy of all that could be made."""
        steps = list(self._steps(lambda which, _: choices[which]))
        likely = torch.stack([log_odds[one] for one, log_odds in steps]).sum()
        return likely, -torch.stack([(log_odds.exp() * log_odds).sum() for _, log_odds in steps]).sum()

    def learn(self, choices: Sequence[int], reward: float) -> None:
        """Make choices more likely where their reward is above the average so far, and less likely where below."""
        baseline = reward if self.baseline is None else self.baseline
        likely, entropy = self(choices)
        self._walk.zero_grad()
        torch.autograd.backward(-(reward - baseline) * likely - ENTROPY_WEIGHT * entropy)
        self._walk.step()
        self.baseline = DECAY * baseline + (1 - DECAY) * reward

    def _steps(self, choose: Callable[[int, torch.Tensor], int]) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield each choice as it is made, with the log-probabilities of its options."""
        state, row = None, 0
        for which, output in enumerate(self.outputs):
            state = self.cell(self.embedding(torch.tensor([row])), state)
            log_odds = output(state[0])[0].log_softmax(dim=0)
            one = choose(which, log_odds)
            yield one, log_odds
            row = self._firsts[which] + one
