"""Recurrent controller trained with REINFORCE (Zoph and Le, ICLR 2017; also used by ENAS).

Each choice is drawn from probabilities that depend on the earlier choices. Choices whose reward exceeds the moving
average of rewards become more likely.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import nn

from driftlab.platform.networks.training.descent import Adam, Optimiser

Choices = tuple[int, ...]
UNITS = 32
MAX_INITIAL_WEIGHT = 0.08  # all choices are about equally likely at first
BASELINE_DECAY = 0.95  # of the moving average of rewards
ENTROPY_WEIGHT = 1e-4  # in the loss


class Controller(nn.Module):
    """An LSTM with an output layer per choice.

    It computes in double precision, so that draws repeat on other processors.
    """

    def __init__(self, counts: Sequence[int], seed: int, rate: float) -> None:
        with torch.random.fork_rng(devices=()):
            super().__init__()
            self._firsts = np.cumsum([1, *counts]).tolist()  # row of each choice's first option; row 0 starts
            self.embedding = nn.Embedding(1 + sum(counts), UNITS)
            self.cell = nn.LSTMCell(UNITS, UNITS)
            self.outputs = nn.ModuleList(nn.Linear(UNITS, count) for count in counts)
            self.double()
            torch.default_generator.manual_seed(seed)
            for parameter in self.parameters():
                nn.init.uniform_(parameter, -MAX_INITIAL_WEIGHT, MAX_INITIAL_WEIGHT)
        self._optimiser = Optimiser(self.parameters(), Adam(rate))
        self.baseline: float | None = None

    def draw(self, rng: np.random.Generator) -> Choices:
        """Draw all choices."""

        def drawn(which: int, log_odds: torch.Tensor) -> int:
            return int(np.searchsorted(np.cumsum(log_odds[:-1].exp().numpy()), rng.random(), side="right"))

        with torch.no_grad():
            return tuple(choice for choice, _ in self._steps(drawn))

    def forward(self, choices: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the log-probability of choices, and the summed entropy of their distributions."""
        steps = list(self._steps(lambda which, _: choices[which]))
        log_prob = torch.stack([log_odds[choice] for choice, log_odds in steps]).sum()
        return log_prob, -torch.stack([(log_odds.exp() * log_odds).sum() for _, log_odds in steps]).sum()

    def learn(self, choices: Sequence[int], reward: float) -> None:
        """Take a REINFORCE step: more likely if the reward exceeds the moving average, else less likely."""
        baseline = reward if self.baseline is None else self.baseline
        log_prob, entropy = self(choices)
        self._optimiser.zero_grad()
        torch.autograd.backward(-(reward - baseline) * log_prob - ENTROPY_WEIGHT * entropy)
        self._optimiser.step()
        self.baseline = BASELINE_DECAY * baseline + (1 - BASELINE_DECAY) * reward

    def _steps(self, choose: Callable[[int, torch.Tensor], int]) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield each choice with the log-probabilities of its options."""
        state, row = None, 0
        for which, output in enumerate(self.outputs):
            state = self.cell(self.embedding(torch.tensor([row])), state)
            log_odds = output(state[0])[0].log_softmax(dim=0)
            choice = choose(which, log_odds)
            yield choice, log_odds
            row = self._firsts[which] + choice
