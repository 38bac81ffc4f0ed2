"""The published policies around Tent as plain PyTorch loops, to compare the wrappers with."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from tta_reference import by_batch, entropy, only_norms, replaced


def asr(model, batches, *, start, speed=0.15, keep=0.5, slope=20.0, rate=1e-3):
    """Reset all but the first tensors in a collapse; yield the outputs and whether there was one."""
    source, learner = copy.deepcopy(model).eval(), by_batch(model)
    values = only_norms(learner)
    first, optimiser, threshold = [v.detach().clone() for v in values], torch.optim.Adam(values, lr=rate), None
    for x in batches:
        z = learner(x)
        initial = math.log(z.shape[1] * start)
        threshold = initial if threshold is None else threshold
        optimiser.zero_grad()
        entropy(z).mean().backward()
        optimiser.step()
        spread = float(entropy(z.detach().mean(0, keepdim=True)))
        yield z.detach(), spread < threshold
        with torch.no_grad():
            if spread < threshold:
                stay = math.floor(max(keep - slope * (threshold - spread), 0) * len(values))
                for value, before in list(zip(values, first, strict=True))[stay:]:
                    value.copy_(before)
                optimiser, threshold = torch.optim.Adam(values, lr=rate), initial
            else:
                differs = float((z.argmax(1) != source(x).argmax(1)).double().mean())
                mu = 1 - speed + speed * differs
                threshold = mu * threshold + (1 - mu) * spread


class Remembered(nn.Module):
    """SNAP's norm: by the batch in steps, else by the memory's statistics, corrected where a batch is far."""

    def __init__(self, norm, width):
        super().__init__()
        self.weight, self.bias, self.width = norm.weight, norm.bias, width
        self.mean, self.var, self.stored, self.frames, self.mode = (
            norm.running_mean,
            norm.running_var,
            None,
            0,
            "answer",
        )

    def forward(self, x):
        shape, self.given = (1, -1, 1, 1), x.detach()
        var, mean = torch.var_mean(x, (0, 2, 3))
        if self.mode == "record":
            self.stored = mean.detach(), var.detach()
        if self.mode != "answer":
            var = torch.var(x, (0, 2, 3), unbiased=False)
        elif self.stored is None:
            mean, var = self.mean, self.var
        else:
            (m, v), count = self.stored, self.frames * x.shape[2] * x.shape[3]
            gap, far = mean - m, self.width * (v / count).sqrt()
            mean = m + gap.sign() * (gap.abs() - far).clamp_min(0)
            gap, far = var - v, self.width * v * math.sqrt(2 / (count - 1))
            var = (v + gap.sign() * (gap.abs() - far).clamp_min(0)).clamp_min(0)
        normal = (x - mean.view(shape)) / (var.view(shape) + 1e-5).sqrt()
        return normal * self.weight.view(shape) + self.bias.view(shape)


def snap(model, batches, *, size, every, confidence, width, rate=1e-3):
    net = replaced(model, lambda norm: Remembered(norm, width))
    norms = [one for one in net.modules() if isinstance(one, Remembered)]
    optimiser = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=rate)
    kept, centre, waited = [], None, 0  # [input, class, mean, deviation]
    for x in batches:
        for norm in norms:
            norm.mode, norm.frames = "answer", len(kept)
        with torch.no_grad():
            z = net(x)
        yield z
        own_var, own_mean = torch.var_mean(norms[0].given, (2, 3), unbiased=False)
        now = own_mean.mean(0), own_var.mean(0)
        centre = now if centre is None else centre
        for n, p in enumerate(z.softmax(1)):
            if float(p.max()) > confidence:
                kept.append((x[n], int(p.argmax()), own_mean[n], own_var[n].sqrt()))
                if len(kept) > size:
                    kept.pop(_leaves(kept, centre))
        centre = tuple(0.1 * old + 0.9 * new for old, new in zip(centre, now, strict=True))
        waited += 1
        if waited >= every and len(kept) > 1:
            waited, memory = 0, torch.stack([one[0] for one in kept])
            for norm in norms:
                norm.mode = "batch"
            optimiser.zero_grad()
            entropy(net(memory)).mean().backward()
            optimiser.step()
            for norm in norms:
                norm.mode = "record"
            with torch.no_grad():
                net(memory)


def _leaves(kept, centre):
    """Return the place of the farthest frame of the most frequent class, or of the newcomer's."""
    counts = {one[1]: sum(other[1] == one[1] for other in kept) for one in kept}
    often = [label for label in sorted(counts) if counts[label] == max(counts.values())]
    label = kept[-1][1] if kept[-1][1] in often else often[0]
    gaps = [float(((m - centre[0]) ** 2 + (s - centre[1].sqrt()) ** 2).sum()) for *_, m, s in kept]
    return max((n for n, one in enumerate(kept) if one[1] == label), key=lambda n: gaps[n])
