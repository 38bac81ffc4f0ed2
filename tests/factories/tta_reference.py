"""The published methods as plain PyTorch loops on whole networks, to compare the members with.

Nothing here is shared with the members. A method takes a network and batches of inputs, and returns its outputs.
"""

from __future__ import annotations

import copy
import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

Norm = nn.modules.batchnorm._BatchNorm


def entropy(z):
    return -(z.softmax(1) * z.log_softmax(1)).sum(1)


def by_batch(model):
    """Make batch norms normalise by the batch and drop their stored statistics."""
    model = copy.deepcopy(model).train()
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.eval()
        if isinstance(module, Norm):
            module.track_running_stats, module.running_mean, module.running_var = False, None, None
    return model


def only_norms(model, spared=()):
    model.requires_grad_(False)
    found = []
    for name, module in model.named_modules():
        if isinstance(module, Norm) and name not in spared:
            found += [module.weight.requires_grad_(True), module.bias.requires_grad_(True)]
    return found


def tent(model, batches, *, steps=1, resets=False):
    """Predict a batch by the pass of its last step."""
    source = model
    model = by_batch(source)
    optimiser = torch.optim.Adam(only_norms(model), lr=1e-3)
    for x in batches:
        if resets:
            model = by_batch(source)
            optimiser = torch.optim.Adam(only_norms(model), lr=1e-3)
        for _ in range(steps):
            z = model(x)
            optimiser.zero_grad()
            entropy(z).mean().backward()
            optimiser.step()
        yield z.detach()


def eata(model, batches, fisher, *, share=0.8, unlike=0.9, beta=50.0):
    model, mean = by_batch(model), None
    values = only_norms(model)
    first = [value.detach().clone() for value in values]
    optimiser = torch.optim.Adam(values, lr=1e-3)
    for x in batches:
        z = model(x)
        yield z.detach()
        limit = share * math.log(z.shape[1])
        keep = entropy(z) < limit
        if mean is not None:
            keep = keep & (F.cosine_similarity(mean[None], z.softmax(1)).abs() < unlike)
        if not keep.any():
            continue
        h = entropy(z)[keep]
        found = z.softmax(1)[keep].mean(0).detach()
        mean = found if mean is None else 0.9 * mean + 0.1 * found
        loss = (h * torch.exp(limit - h.detach())).mean()
        loss = loss + beta * sum((f * (v - v0) ** 2).sum() for f, v, v0 in zip(fisher, values, first, strict=True))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


def fisher_of(model, x, size):
    """Average the squared gradients of scales and shifts on the predicted labels, over equal batches."""
    model = by_batch(model)
    values = only_norms(model)
    total = [torch.zeros_like(value) for value in values]
    parts = x.split(size)
    for part in parts:
        z = model(part)
        for place, found in enumerate(torch.autograd.grad(F.cross_entropy(z, z.argmax(1)), values)):
            total[place] += found**2 / len(parts)
    return total


def sar(model, batches, spared, *, share=0.8, radius=0.05, rate=1e-2):
    model = by_batch(model)
    values = only_norms(model, spared)
    optimiser = torch.optim.SGD(values, lr=rate, momentum=0.9)
    for x in batches:
        z = model(x)
        yield z.detach()
        limit = share * math.log(z.shape[1])
        keep = entropy(z) < limit
        optimiser.zero_grad()
        entropy(z)[keep].mean().backward()
        length = torch.stack([value.grad.norm() for value in values]).norm()
        steps = [radius * value.grad / (length + 1e-12) for value in values]
        with torch.no_grad():
            for value, step in zip(values, steps, strict=True):
                value.add_(step)
        again = entropy(model(x))
        optimiser.zero_grad()
        again[keep & (again < limit)].mean().backward()
        with torch.no_grad():
            for value, step in zip(values, steps, strict=True):
                value.sub_(step)
        optimiser.step()


def cotta(model, batches, seeds, view, *, memory=0.9, restore=0.1, rate=1e-3, released=False):
    """Run CoTTA with one view and the same restoration; the plain teacher or the target predicts."""
    student, teacher, source = by_batch(model), by_batch(model), by_batch(model)
    optimiser = torch.optim.Adam(student.parameters(), lr=rate)
    if released:
        optimiser = torch.optim.SGD(student.parameters(), lr=rate, momentum=0.9)
    for x, seed in zip(batches, seeds, strict=True):
        with torch.no_grad():
            answers, target = teacher(x), teacher(view(x))
        yield target if released else answers
        z = student(x)
        optimiser.zero_grad()
        (-(target.softmax(1) * z.log_softmax(1)).sum(1)).mean().backward()
        optimiser.step()
        back = torch.from_numpy(np.random.default_rng(seed).random(sum(v.numel() for v in student.parameters())))
        with torch.no_grad():
            for old, new in zip(teacher.parameters(), student.parameters(), strict=True):
                old.mul_(memory).add_((1 - memory) * new)
            for new, there in zip(student.parameters(), source.parameters(), strict=True):
                mine, back = back[: new.numel()].view_as(new), back[new.numel() :]
                new.copy_(torch.where(mine < restore, there, new))


class Robust(nn.Module):
    def __init__(self, norm, share):
        super().__init__()
        self.weight, self.bias, self.share = norm.weight, norm.bias, share
        self.register_buffer("mean", norm.running_mean.clone())
        self.register_buffer("var", norm.running_var.clone())

    def forward(self, x):
        mean, var = self.mean, self.var
        if self.training:
            var, mean = (a for a in torch.var_mean(x, (0, 2, 3), unbiased=False))
            mean = (1 - self.share) * self.mean + self.share * mean
            var = (1 - self.share) * self.var + self.share * var
            self.mean, self.var = mean.detach().clone(), var.detach().clone()
        shape = (1, -1, 1, 1)
        return (x - mean.view(shape)) / (var.view(shape) + 1e-5).sqrt() * self.weight.view(shape) + self.bias.view(
            shape
        )


class Instance(nn.Module):
    def __init__(self, norm, width, momentum):
        super().__init__()
        self.weight, self.bias, self.width, self.momentum = norm.weight, norm.bias, width, momentum
        self.register_buffer("mean", norm.running_mean.clone())
        self.register_buffer("var", norm.running_var.clone())

    def forward(self, x):
        shape, length = (1, -1, 1, 1), x.shape[2] * x.shape[3]
        mean, var = self.mean, self.var
        if self.training:
            var, mean = torch.var_mean(x, (0, 2, 3))
            self.mean = (1 - self.momentum) * self.mean + self.momentum * mean.detach()
            self.var = (1 - self.momentum) * self.var + self.momentum * var.detach()
        mean, var = mean.view(shape), var.view(shape)
        own_var, own_mean = torch.var_mean(x, (2, 3), keepdim=True)
        far = self.width * ((var + 1e-5) / length).sqrt()
        wide = self.width * (var + 1e-5) * math.sqrt(2 / (length - 1))
        mean = mean + torch.where((own_mean - mean).abs() > far, own_mean - mean - far * (own_mean - mean).sign(), 0.0)
        gap = own_var - var
        var = (var + torch.where(gap.abs() > wide, gap - wide * gap.sign(), 0.0)).clamp_min(0)
        return (x - mean) / (var + 1e-5).sqrt() * self.weight.view(shape) + self.bias.view(shape)


def replaced(model, make):
    """Copy a network with other batch norms, and make only these trainable."""
    model = copy.deepcopy(model).eval().requires_grad_(False)
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.BatchNorm2d):
            new = make(module)
            new.weight.requires_grad_(True)
            new.bias.requires_grad_(True)
            model.set_submodule(name, new)
    return model


def rotta(model, batches, view, *, size, every, share=0.05, speed=0.2):
    student, teacher = replaced(model, lambda n: Robust(n, share)), replaced(model, lambda n: Robust(n, share))
    optimiser = torch.optim.Adam([p for p in student.parameters() if p.requires_grad], lr=1e-3)
    kept, count = [], 0  # [x, class, doubt, age]
    for x in batches:
        with torch.no_grad():
            z = teacher.eval()(x)
        yield z
        classes = z.shape[1]

        def badness(entry, classes=classes):
            return 1 / (1 + math.exp(-entry[3] / size)) + entry[2] / math.log(classes)

        for one, label, doubt in zip(x, z.argmax(1).tolist(), entropy(z).tolist(), strict=True):
            new = [one, label, doubt, 0]
            same = [entry for entry in kept if entry[1] == label]
            if len(same) < size / classes and len(kept) < size:
                kept.append(new)
            else:
                if len(same) < size / classes:
                    often = [sum(e[1] == k for e in kept) for k in range(classes)]
                    same = [entry for entry in kept if often[entry[1]] == max(often)]
                worst = max(same, key=badness)
                if badness(worst) > badness(new):
                    kept = [entry for entry in kept if entry is not worst] + [new]
            for entry in kept:
                entry[3] += 1
            count += 1
            if count % every == 0:
                memory = sorted(kept, key=lambda entry: entry[1])
                _teach(student, teacher, optimiser, memory, view, size, speed)


def _teach(student, teacher, optimiser, kept, view, size, speed):
    x, ages = torch.stack([entry[0] for entry in kept]), torch.tensor([entry[3] / size for entry in kept])
    with torch.no_grad():
        target = teacher.train()(x)
    z = student.train()(view(x))
    weight = torch.exp(-ages) / (1 + torch.exp(-ages))
    optimiser.zero_grad()
    (weight * -(target.softmax(1) * z.log_softmax(1)).sum(1)).mean().backward()
    optimiser.step()
    with torch.no_grad():
        for old, new in zip(teacher.parameters(), student.parameters(), strict=True):
            old.mul_(1 - speed).add_(speed * new)


def note(model, batches, seeds, *, size, every, width=4.0, momentum=0.01, rate=1e-3):
    model = replaced(model, lambda norm: Instance(norm, width, momentum))
    optimiser = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=rate)
    kept, seen, count = [], {}, 0
    for x, seed in zip(batches, seeds, strict=True):
        rng = np.random.default_rng(seed)
        with torch.no_grad():
            z = model.eval()(x)
        yield z
        for one, label in zip(x, z.argmax(1).tolist(), strict=True):
            seen[label] = seen.get(label, 0) + 1
            kept = _reservoir(kept, (one, label), seen, size, rng)
            count += 1
            if count % every == 0:
                inputs = torch.stack([entry[0] for entry in sorted(kept, key=lambda entry: entry[1])])
                p = model.train()(inputs).softmax(1)
                optimiser.zero_grad()
                (-(p * torch.log(p + 1e-6))).mean().backward()
                optimiser.step()


def _reservoir(kept, new, seen, size, rng):
    if len(kept) < size:
        return [*kept, new]
    often = {label: sum(entry[1] == label for entry in kept) for label in {entry[1] for entry in kept}}
    most = sorted(label for label, number in often.items() if number == max(often.values()))
    label = new[1]
    if label in most:
        if rng.random() > often[label] / seen[label]:
            return kept
        leaves = label
    else:
        leaves = most[int(rng.integers(len(most)))]
    places = [place for place, entry in enumerate(kept) if entry[1] == leaves]
    gone = places[int(rng.integers(len(places)))]
    return [entry for place, entry in enumerate(kept) if place != gone] + [new]


def lame(features, z, *, nearest):
    """The rounds for one batch, row by row."""
    p = z.softmax(1)
    x = F.normalize(features, dim=1)
    count = len(x)
    distances = torch.tensor([[float((x[i] - x[j]).norm()) for j in range(count)] for i in range(count)])
    alike = torch.zeros(count, count, dtype=z.dtype)
    for i in range(count):
        order = sorted((j for j in range(count) if j != i), key=lambda j: float(distances[i, j]))
        alike[i, order[: min(nearest, count - 1)]] = 1
    y, before = p, math.inf
    for number in range(100):
        pull = alike @ y
        y = torch.softmax(torch.log(p + 1e-10) + pull, dim=1)
        energy = float((-torch.log(p + 1e-10) * y - pull * y + y * torch.log(y + 1e-30)).sum())
        if number > 1 and abs(energy - before) <= 1e-8 * abs(before):
            break
        before = energy
    return y


def t3a(weight, bias, features, *, keep):
    """Outputs for batches of features."""
    supports = [(row, row @ weight.T + bias) for row in weight]
    for batch in features:
        supports += [(row, row @ weight.T + bias) for row in batch]
        chosen = []
        for label in range(len(weight)):
            mine = [one for one in supports if int(one[1].argmax()) == label]
            mine.sort(key=lambda one: float(entropy(one[1][None])))
            chosen.append(mine[:keep])
        supports = [one for mine in chosen for one in mine]
        template = [sum((row / row.norm() for row, _ in mine), torch.zeros_like(weight[0])) for mine in chosen]
        yield batch @ torch.stack([F.normalize(row, dim=0) for row in template]).T


def in_train_mode(model, frozen):
    """Batch norms normalise by the batch and follow it, all but the frozen layer learns."""
    model = copy.deepcopy(model).eval()
    for module in model.modules():
        if isinstance(module, Norm):
            module.train()
    return model, [value for name, value in model.named_parameters() if not name.startswith(f"{frozen}.")]


def shot(model, batches, *, rate=1e-2, adam=False, frozen=False, over=None):
    """Information maximisation, one step per batch; outputs are those of evaluation after each step."""
    learner, values = in_train_mode(model, "net.head")
    if frozen:
        learner.eval()
    optimiser = torch.optim.SGD(values, lr=rate, momentum=0.9, nesterov=True, weight_decay=1e-3)
    if adam:
        optimiser = torch.optim.Adam(values, lr=rate)
    for number, x in enumerate(batches, 1):
        if over is not None:
            optimiser.param_groups[0]["lr"] = rate * (1 + 10 * min(1, number / over)) ** -0.75
        p = learner(x).softmax(1)
        mean = p.mean(0)
        loss = -(p * p.log()).sum(1).mean() + (mean * mean.log()).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        with torch.no_grad():
            yield copy.deepcopy(learner).eval()(x)


def histogram(values, low, high, softness):
    """Soft shares of one unit."""
    reach = high + 1e-8 - low
    edges = [low / reach + k / 8 for k in range(9)]
    heights = [(b + 1) * values / reach - sum(edges[:b]) for b in range(10)]
    return torch.softmax(torch.stack(heights, dim=1) / softness, dim=1).mean(0)


def bufr(model, source, batches, taken, *, softness=0.05, rate=1e-3):
    """All layers but the head learn, one step per batch; `taken` returns features and outputs of a pass."""

    def parts(network, x):
        return [column for table in taken(network, x) for column in table.T], [t.shape[1] for t in taken(network, x)]

    with torch.no_grad():
        columns, widths = parts(model, source)
    ranges = [(column.min(), column.max()) for column in columns]
    wanted = [histogram(c, low, high, softness) for c, (low, high) in zip(columns, ranges, strict=True)]
    learner, values = in_train_mode(model, "net.head")
    optimiser = torch.optim.SGD(values, lr=rate, momentum=0.9)
    for x in batches:
        found = [column for table in taken(learner, x) for column in table.T]
        gaps = []
        for column, (low, high), p in zip(found, ranges, wanted, strict=True):
            q = histogram(column, low, high, softness)
            gaps.append(((p - q) * ((p + 1e-8).log() - (q + 1e-8).log())).sum() / math.log(10))
        loss = torch.stack(gaps[: widths[0]]).mean() + torch.stack(gaps[widths[0] :]).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        with torch.no_grad():
            yield copy.deepcopy(learner).eval()(x)
