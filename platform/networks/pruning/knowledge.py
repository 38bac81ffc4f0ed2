"""ElasticDNN's domain knowledge (Eq. 1, 3 and 4).

The weights of each layer are a mixture of knowledge entries.

The weights of a layer, one row per filter, are `mixing @ entries`: `mixing` holds the relevances w_i(j, k), `entries`
the weight set of the layer. The changes of a surrogate are stored in the entries (Eq. 3), and the layer is mixed again
(Eq. 4). Together the two steps change the weights by `mixing @ mixing.T @ change`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

LinkMode = Literal["identity", "mix_fixed", "reparam", "penalty"]
MAX_AMPLIFICATION = 1.5  # a larger eigenvalue of mixing @ mixing.T scales the change down
MAX_GAP = 1e-5  # between the weights of a layer and its mixture


@dataclass(frozen=True, eq=False)
class LayerLink:
    """The knowledge of one layer in double precision.

    Without a mixing, the entries are the rows of the layer.
    """

    mixing: Tensor | None  # [filters, filters]
    entries: Tensor  # [filters, inputs · kernel]

    @property
    def weights(self) -> Tensor:
        """Return the mixture, as in Eq. 4."""
        return self.entries if self.mixing is None else self.mixing @ self.entries

    def store_change(self, change: Tensor, rate: float) -> LayerLink:
        """Return the link after a change of the layer's weights (Eq. 3).

        Filters that were not trained have zeros.
        """
        change = change.to(self.entries)
        if self.mixing is None:
            return LayerLink(None, self.entries + rate * change)
        largest = float(torch.linalg.matrix_norm(self.mixing, 2)) ** 2
        rate = rate / largest if largest > MAX_AMPLIFICATION else rate
        return LayerLink(self.mixing, self.entries + rate * (self.mixing.T @ change))


class Mixture(nn.Module):
    """A parametrisation of a layer by a learned mixture of its entries, initially the identity."""

    def __init__(self, filters: int) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.zeros(filters, filters))

    def forward(self, entries: Tensor) -> Tensor:
        return entries + (self.offset @ entries.flatten(1)).view_as(entries)


def layers_with_knowledge(model: nn.Module, head: str) -> list[str]:
    """Return the names of all convolutions and linear layers except the head."""
    kinds = (nn.Linear, nn.modules.conv._ConvNd)
    return [name for name, module in model.named_modules() if isinstance(module, kinds) and name != head]


def parametrise(model: nn.Module, layers: Iterable[str]) -> None:
    """Replace the weights of layers by mixtures of entries, in place."""
    for name in layers:
        module = model.get_submodule(name)
        parametrize.register_parametrization(module, "weight", Mixture(len(module.get_parameter("weight"))))


def fix_mixtures(model: nn.Module, layers: Iterable[str]) -> dict[str, LayerLink]:
    """Return the links of parametrised layers, and turn their weights back into plain parameters."""
    links = {}
    for name in layers:
        module = model.get_submodule(name)
        entries = module.get_parameter("parametrizations.weight.original").detach().double().flatten(1)
        offset = module.get_parameter("parametrizations.weight.0.offset").detach().double()
        links[name] = LayerLink(torch.eye(len(offset), dtype=torch.float64).to(offset) + offset, entries)
        parametrize.remove_parametrizations(module, "weight")
    return links


class LinkPenalty(nn.Module):
    """Soft links: mixings, initially zero, trained to reproduce the layers from fixed entries."""

    def __init__(self, model: nn.Module, layers: Iterable[str]) -> None:
        super().__init__()
        self.layers = tuple(layers)
        self.entries = [_rows(model, name).detach().clone() for name in self.layers]
        self.mixings = nn.ParameterList(torch.zeros(len(rows), len(rows)) for rows in self.entries)

    def loss(self, model: nn.Module) -> Tensor:
        """Return the sum of squared differences between layers and mixtures."""
        terms = [
            ((_rows(model, name) - mixing.to(rows) @ rows) ** 2).sum()
            for name, mixing, rows in zip(self.layers, self.mixings, self.entries, strict=True)
        ]
        return torch.stack(terms).sum()

    def links(self) -> dict[str, LayerLink]:
        pairs = zip(self.layers, self.mixings, self.entries, strict=True)
        return {
            name: LayerLink(mixing.detach().double().to(rows.device), rows.double()) for name, mixing, rows in pairs
        }


def fixed_links(model: nn.Module, layers: Iterable[str], *, orthogonal: bool) -> dict[str, LayerLink]:
    """Draw the mixings, and solve for the entries that reproduce the layers."""
    links = {}
    for name in layers:
        rows = _rows(model, name).detach().double()
        mixing = random_mixing(len(rows), orthogonal=orthogonal).to(rows)
        links[name] = LayerLink(mixing, torch.linalg.solve(mixing, rows))
    return links


def random_mixing(filters: int, *, orthogonal: bool) -> Tensor:
    """Draw an orthogonal matrix, or one with softmax rows that are largest on the diagonal."""
    noise = torch.randn(filters, filters, dtype=torch.float64)
    if orthogonal:
        rotation: Tensor = torch.linalg.qr(noise).Q
        return rotation
    return (3 * torch.eye(filters, dtype=torch.float64) + 0.3 * noise).softmax(dim=1)


def identity_links(model: nn.Module, layers: Iterable[str]) -> dict[str, LayerLink]:
    """Return links whose entries are the layers' own rows."""
    return {name: LayerLink(None, _rows(model, name).detach().double().clone()) for name in layers}


def mix_layers(model: nn.Module, links: Mapping[str, LayerLink]) -> None:
    """Set each layer to its mixture (Eq. 4), in place; the two then differ by rounding only."""
    with torch.no_grad():
        for name, link in links.items():
            weight = model.get_submodule(name).get_parameter("weight")
            weight.copy_(link.weights.view(weight.shape))


def largest_gap(model: nn.Module, links: Mapping[str, LayerLink]) -> float:
    """Return the largest difference between a layer and its mixture."""
    gaps = [float((_rows(model, name).detach().double() - link.weights).abs().max()) for name, link in links.items()]
    return max(gaps, default=0.0)


def _rows(model: nn.Module, layer: str) -> Tensor:
    return model.get_submodule(layer).get_parameter("weight").flatten(1)
