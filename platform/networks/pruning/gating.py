"""Feature boosting and suppression (FBS), the gates of ElasticDNN's master (Eq. 2).

The gates keep the most relevant channels.

A gate predicts the relevance of each channel from the input of its layer. It multiplies the last batch norm of a group
of channels, before the activation, so that dropped channels are exactly zero for every layer that reads them: the
network cut to the channels of one frame has the same output as the gated one on this frame.

Differs from the paper: Eq. 2 multiplies the convolution; a batch norm after it would turn a zero gate into a constant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from driftlab.platform.networks.features import features
from driftlab.platform.networks.module_utils import batch_norms, copy_model
from driftlab.platform.networks.predict import evaluating
from driftlab.platform.networks.pruning.surgery import Groups, cut
from driftlab.platform.networks.pruning.surgery.edit import Channels

MIN_HIDDEN = 4  # units of the hidden layer of a gate
BOTTLENECK = 16  # factor by which this layer is narrower than the output
MIN_KEEP = 2  # channels of a group
INITIAL_STD = 0.05  # of the last layer's weights: the gated network starts close to the ungated one
CLAMP = 2.0  # of standardised inputs, in standard deviations
GateKind = Literal["input", "domain", "static", "frozen", "random"]


@dataclass(frozen=True, eq=False)
class GateSite:
    """A gated group of channels: its convolution, and the batch norm that its gate multiplies."""

    group: str
    conv: str
    norm: str
    units: Tensor  # the channel of the group at each place of the norm; repeated if channels are cut in blocks

    @property
    def size(self) -> int:
        return int(self.units.max()) + 1

    def per_unit(self, raw: Tensor) -> Tensor:
        """Average the gates over the places of each channel of the group."""
        if len(self.units) == self.size:
            return raw
        summed = raw.new_zeros(*raw.shape[:-1], self.size).index_add(-1, self.units.to(raw.device), raw)
        return summed / torch.bincount(self.units, minlength=self.size).to(raw)


class ChannelGate(nn.Module):
    """The predictor of the relevances p of Eq. 2, from the mean absolute value of each input channel."""

    def __init__(self, inputs: int, outputs: int, bottleneck: int) -> None:
        super().__init__()
        hidden = max(MIN_HIDDEN, outputs // bottleneck)
        self.squeeze, self.predict = nn.Linear(inputs, hidden), nn.Linear(hidden, outputs)
        nn.init.normal_(self.predict.weight, std=INITIAL_STD)
        nn.init.ones_(self.predict.bias)

    def forward(self, x: Tensor, frames: int = 1) -> Tensor:
        return F.relu(self.predict(F.relu(self.squeeze(x.abs().mean(dim=(2, 3))))))


class DomainGate(nn.Module):
    """A gate that follows the domain: one linear layer on standardised inputs.

    Mean absolute values are positive and vary little, so that the weights of other gates act as a second bias.
    Successive frames of one domain share their gates.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm, self.predict = nn.BatchNorm1d(inputs, affine=False), nn.Linear(inputs, outputs)
        nn.init.normal_(self.predict.weight, std=INITIAL_STD)
        nn.init.ones_(self.predict.bias)

    def forward(self, x: Tensor, frames: int = 1) -> Tensor:
        pooled = x.abs().mean(dim=(2, 3)).unflatten(0, (-1, frames)).mean(dim=1)
        raw = F.relu(self.predict(self.norm(pooled).clamp(-CLAMP, CLAMP)))
        return raw.repeat_interleave(frames, dim=0)


class ConstantGate(nn.Module):
    """A control: gates that are equal for all frames, learned or drawn once."""

    def __init__(self, outputs: int, *, drawn: bool) -> None:
        super().__init__()
        start = torch.ones(outputs) + (INITIAL_STD * torch.randn(outputs) if drawn else 0.0)
        self.value = nn.Parameter(start, requires_grad=not drawn)

    def forward(self, x: Tensor, frames: int = 1) -> Tensor:
        return F.relu(self.value).expand(len(x), -1)


def gate_of(kind: GateKind, inputs: int, outputs: int, bottleneck: int) -> nn.Module:
    """Return a new gate of a kind; `frozen` has the weights that it is drawn with."""
    if kind == "domain":
        return DomainGate(inputs, outputs)
    if kind in ("static", "random"):
        return ConstantGate(outputs, drawn=kind == "random")
    return ChannelGate(inputs, outputs, bottleneck).requires_grad_(kind != "frozen")


class StaticNorm(nn.BatchNorm2d):
    """A batch norm multiplied by constant gates; it replaces the gate in a surrogate."""

    gate: Tensor

    def __init__(self, norm: nn.BatchNorm2d, gate: Tensor) -> None:
        super().__init__(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
        self.weight, self.bias = norm.weight, norm.bias
        self.running_mean, self.running_var = norm.running_mean, norm.running_var
        self.num_batches_tracked = norm.num_batches_tracked
        self.register_buffer("gate", gate)

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = super().forward(input)
        return output * self.gate.view(1, -1, 1, 1)


class GatedNetwork(nn.Module):
    """A network that keeps a share of the channels of every gated group, selected per frame."""

    def __init__(
        self,
        network: nn.Module,
        sites: Sequence[GateSite],
        bottleneck: int = BOTTLENECK,
        min_keep: int = MIN_KEEP,
        kind: GateKind = "input",
    ) -> None:
        super().__init__()
        self.network, self.sites, self.min_keep, self.ratio = network, tuple(sites), min_keep, 1.0
        self.frames = 1  # successive frames of one domain, which share the gates of kind `domain`
        modules: dict[str, Any] = dict(network.named_modules())
        self.gates = nn.ModuleList(
            gate_of(kind, modules[site.conv].in_channels, len(site.units), bottleneck) for site in self.sites
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.run(images)[0]

    def run(self, images: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the outputs, and the raw gates (relevances) [n, places] of each gated group."""
        modules, raw, hooks = dict(self.network.named_modules()), dict[str, Tensor](), []
        for site, gate in zip(self.sites, self.gates, strict=True):
            hooks.append(modules[site.conv].register_forward_pre_hook(self._predicting(site, gate, raw)))
            hooks.append(modules[site.norm].register_forward_hook(self._gating(site, raw)))
        try:
            return self.network(images), raw
        finally:
            for hook in hooks:
                hook.remove()

    def _predicting(self, site: GateSite, gate: nn.Module, raw: dict[str, Tensor]) -> Callable[..., None]:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            raw[site.group] = gate(inputs[0], self.frames)

        return hook

    def _gating(self, site: GateSite, raw: Mapping[str, Tensor]) -> Callable[..., Tensor]:
        def hook(_: nn.Module, inputs: object, output: Tensor) -> Tensor:
            gates = raw[site.group]
            keep = keep_count(site.size, self.ratio, self.min_keep)
            stays = mark_top(site.per_unit(gates.detach()), keep)[:, site.units.to(gates.device)]
            return output * (gates * stays)[:, :, None, None]

        return hook


def keep_count(size: int, ratio: float, min_keep: int) -> int:
    """Return the number of channels to keep; 1e-9 corrects the rounding of products such as 100 · 0.29."""
    return min(size, max(min_keep, math.floor(size * ratio + 1e-9)))


def top_channels(gates: Tensor, keep: int) -> Tensor:
    """Return the indices of the largest gates along the last dimension, ascending.

    Of equal gates, those with the lowest indices are chosen.
    """
    return gates.sort(dim=-1, descending=True, stable=True).indices[..., :keep].sort(dim=-1).values


def mark_top(gates: Tensor, keep: int) -> Tensor:
    """Mark the largest gates of each row with 1, the others with 0."""
    return torch.zeros_like(gates).scatter(-1, top_channels(gates, keep), 1.0)


def find_sites(model: nn.Module, groups: Groups, example: Tensor) -> tuple[tuple[GateSite, ...], dict[str, str]]:
    """Return the groups that can be gated, in running order, and the reason for each other group.

    A group needs exactly one dense convolution, followed by a batch norm. The gated network is then compared with the
    cut one, which reveals channels that are also read before the batch norm.
    """
    modules, ran = dict(model.named_modules()), _running_order(model, example)
    sites, others = list[GateSite](), dict[str, str]()
    for name, group in groups.members.items():
        makers = [layer for layer in group.layers if not _is_depthwise(modules.get(layer))]
        norms = [norm for norm in ran if norm in batch_norms(model) and _covers(groups, name, norm)]
        if len(makers) != 1 or not isinstance(modules.get(makers[0]), nn.Conv2d):
            others[name] = "is not made by one dense convolution"
        elif not norms or not isinstance(modules[norms[-1]], nn.BatchNorm2d):
            others[name] = "has no batch norm to gate"
        else:
            units = groups.axes[f"{norms[-1]}.weight", 0][0] - group.first
            sites.append(GateSite(name, makers[0], norms[-1], units))
    sites.sort(key=lambda site: ran.index(site.norm))
    twin = _with_random_norms(model)
    wrong = {site.group for site in sites if not _is_exact(twin, groups, site, example)}
    others.update(dict.fromkeys(wrong, "is also read elsewhere than behind its batch norm"))
    return tuple(site for site in sites if site.group not in wrong), others


def cut_gated(
    model: nn.Module, groups: Groups, sites: Sequence[GateSite], kept: Channels, gates: Mapping[str, Tensor]
) -> nn.Module:
    """Cut a network to the kept channels, each multiplied by a constant gate.

    The gates are by the place of the norm.
    """
    small = cut(model, groups, kept).eval()
    for site in sites:
        parent, _, name = site.norm.rpartition(".")
        norm: Any = small.get_submodule(site.norm)
        gate = gates[site.group].detach().to(device=norm.running_mean.device, dtype=norm.running_mean.dtype).clone()
        setattr(small.get_submodule(parent), name, StaticNorm(norm, gate).eval())
    return small


def kept_places(site: GateSite, kept: Tensor) -> Tensor:
    """Mark the places of the norm whose channels are kept."""
    return torch.isin(site.units, kept.cpu())


def _covers(groups: Groups, name: str, norm: str) -> bool:
    """Return whether the places of a batch norm are all channels of this group, and no others."""
    axes = groups.axes.get((f"{norm}.weight", 0))
    group = groups.members[name]
    return axes is not None and set(axes[0].tolist()) == set(range(group.first, group.first + group.size))


def _is_depthwise(module: nn.Module | None) -> bool:
    return isinstance(module, nn.Conv2d) and module.groups > 1


def _running_order(model: nn.Module, example: Tensor) -> list[str]:
    """Return the names of layers with weights in running order."""
    with evaluating(model), torch.inference_mode():
        return list(features(model, example).layers)


def _with_random_norms(model: nn.Module) -> nn.Module:
    """Return a copy in double precision with random statistics, scales and shifts."""
    with torch.random.fork_rng(devices=()), torch.no_grad():
        torch.default_generator.manual_seed(0)
        twin = copy_model(model).double().eval().cpu()  # whose generator is the same on every computer
        for norm in batch_norms(twin).values():
            for value in (norm.weight, norm.bias, norm.running_mean):
                if value is not None:
                    value.copy_(torch.rand_like(value) + 0.5)
    return twin


def _is_exact(model: nn.Module, groups: Groups, site: GateSite, example: Tensor) -> bool:
    """Return whether dropping channels by a gate equals cutting them, on a random image."""
    with torch.random.fork_rng(devices=()), torch.no_grad():
        torch.default_generator.manual_seed(1)
        gated = GatedNetwork(model, [site], 1, 1).double().eval()
        gated.ratio, image = 0.5, torch.randn_like(example[:1].cpu(), dtype=torch.float64)
        expected, raw = gated.run(image)
        kept = top_channels(site.per_unit(raw[site.group][0]), keep_count(site.size, 0.5, 1))
        gate = {site.group: raw[site.group][0][kept_places(site, kept)]}
        output = cut_gated(model, groups, [site], {site.group: kept}, gate)(image)
    return bool((output - expected).abs().max() <= 1e-9 * expected.abs().max().clamp_min(1.0))
