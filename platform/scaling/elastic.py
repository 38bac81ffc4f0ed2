"""ElasticDNN's surrogate generator and master updating (Section III-B 2 and 3).

A surrogate is cut from the master, and its changes are fed back.

The retraining of a surrogate between the two is `adaptation/elasticdnn`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from driftlab.errors import RequestError
from driftlab.platform.core.records import LayerCost, Passes, Weights
from driftlab.platform.core.seeding import rng_for
from driftlab.platform.networks.cost_counter import count_cost, stored_bytes
from driftlab.platform.networks.features import head_of
from driftlab.platform.networks.module_utils import batch_norms, copy_model, restore_entries
from driftlab.platform.networks.predict import device_of, state_of, to_input
from driftlab.platform.networks.pruning import gating
from driftlab.platform.networks.pruning.gating import GatedNetwork, GateSite
from driftlab.platform.networks.pruning.knowledge import LayerLink, layers_with_knowledge, mix_layers
from driftlab.platform.networks.pruning.surgery import Groups, cut, groups, lift
from driftlab.platform.networks.tasks.boxes import SIDES
from driftlab.platform.networks.tasks.tasks import Task
from driftlab.platform.networks.training.training_loop import DataSplits, grade
from driftlab.platform.scaling.base import FEEDBACK, ChannelMask
from driftlab.platform.scaling.growing import PruningContext
from driftlab.platform.scaling.master_training import MasterInTraining, measure_statistics, statistic_names

FRAMES_PER_PASS = 64  # through the master
WEIGHT_BYTES = 4  # a device keeps knowledge in single precision
NormScope = Literal["all", "gated", "trained"]


@dataclass(frozen=True, eq=False)
class Cut:
    """A surrogate: its channels and its tensors."""

    kept: Mapping[str, npt.NDArray[np.int64]]
    state: Weights


@dataclass(frozen=True, eq=False)
class Master:
    """A master network with its domain knowledge.

    It has batch-norm statistics and a surrogate per keep ratio.
    """

    gated: GatedNetwork  # immutable: a change makes a copy
    groups: Groups
    links: Mapping[str, LayerLink]  # domain knowledge, by layer (Eq. 1)
    ratios: tuple[float, ...]  # ascending
    statistics: tuple[Weights, ...]
    cuts: tuple[Cut, ...] = ()
    val_accuracies: tuple[float, ...] = ()
    test_accuracies: tuple[float, ...] = ()

    def __len__(self) -> int:
        return len(self.ratios)

    @property
    def network(self) -> nn.Module:
        return self.gated.network

    def memory_bytes(self, which: int) -> int:
        return sum(array.nbytes for array in self.cuts[which].state.values())

    def at_ratio(self, which: int) -> GatedNetwork:
        """Return a copy of the gated network at a keep ratio, with the statistics of that ratio."""
        gated = copy_model(self.gated).eval()
        gated.ratio = self.ratios[which]
        restore_entries(gated.network, self.statistics[which])
        return gated


def refuse_ungated(model: nn.Module, sites: Sequence[GateSite], others: Mapping[str, str]) -> None:
    """Refuse a network in which no group of channels can be gated."""
    if not sites:
        reasons = "; ".join(f"{name} {why}" for name, why in others.items())
        raise RequestError(
            f"{type(model).__name__} has no group of channels that can be gated ({reasons}). "
            "Use another network or scaling 'fixed'."
        )


def first_master(trained: MasterInTraining, context: PruningContext, keep: Sequence[float]) -> Master:
    """Return the master with statistics per keep ratio.

    Ratios that keep equal numbers of channels are merged.
    """
    gated = trained.gated
    sizes = {
        tuple(gating.keep_count(site.size, ratio, gated.min_keep) for site in gated.sites): ratio for ratio in keep
    }
    ratios = tuple(sorted(sizes.values()))
    statistics = tuple(measure_statistics(trained, ratio) for ratio in ratios)
    return Master(gated.eval(), context.groups, trained.links, ratios, statistics, tuple(Cut({}, {}) for _ in ratios))


def measure_accuracies(master: Master, data: DataSplits) -> Master:
    """Return the master with the validation and test accuracy of each surrogate."""
    networks = [surrogate_of(master, which) for which in range(len(master))]
    val_accuracies, test_accuracies = (
        tuple(grade(network, data, split) for network in networks) for split in (data.val, data.test)
    )
    return replace(master, val_accuracies=val_accuracies, test_accuracies=test_accuracies)


# Domain-specific surrogate generator ----------------------------------------------------------------------------------


def mask_for(
    master: Master, which: int, images: npt.NDArray[np.uint8], task: Task, *, sample: str, filters: str
) -> ChannelMask:
    """Select the channels of a keep ratio for samples of a domain; all samples pass the master once."""
    gated = master.at_ratio(which)
    passes, device = [], device_of(gated)
    with torch.no_grad():
        for start in range(0, len(images), FRAMES_PER_PASS):
            frames = to_input(images[start : start + FRAMES_PER_PASS]).to(device)
            gated.frames = len(frames) if sample == "mean" else 1
            passes.append(gated.run(frames))

    # Step 1, representative sample selection: the most difficult sample, which has the largest entropy.
    outputs = torch.cat([output for output, _ in passes])
    row = int(entropies(outputs, task).argmax()) if sample == "hardest" else 0

    # Step 2, accuracy-relevant filter selection: the filters with the largest relevance p of Eq. 2.
    kept, gates = {}, {}
    for site in gated.sites:
        relevance = torch.cat([found[site.group] for _, found in passes])
        relevance = relevance.mean(dim=0) if sample == "mean" else relevance[row]
        count = gating.keep_count(site.size, gated.ratio, gated.min_keep)
        if filters == "relevant":
            channels = gating.top_channels(site.per_unit(relevance), count)
        elif filters == "l1":
            weights = gated.network.get_submodule(site.conv).get_parameter("weight")
            channels = gating.top_channels(site.per_unit(weights.abs().flatten(1).sum(dim=1)), count)
        else:
            drawn = rng_for(count, "surrogate", site.group).choice(site.size, size=count, replace=False)
            channels = torch.from_numpy(np.sort(drawn))
        kept[site.group] = channels.cpu().numpy()
        gates[site.group] = relevance[gating.kept_places(site, channels).to(device)].cpu().numpy()
    surrogate_bytes = stored_bytes(cut(master.network, master.groups, kept))
    cutting = LayerCost("cut", "Copy", 0, 0, surrogate_bytes, surrogate_bytes, 0)
    return ChannelMask(
        kept, gates, _selection_passes(master, images), (cutting,), (_feedback(master, surrogate_bytes),)
    )


def mask_of(master: Master, which: int) -> ChannelMask:
    """Return the channels that a surrogate has; choosing them again takes no pass."""
    current = master.cuts[which]
    gates = {site.group: current.state[f"{site.norm}.gate"] for site in master.gated.sites}
    surrogate_bytes = sum(array.nbytes for array in current.state.values())
    cutting = LayerCost("cut", "Copy", 0, 0, surrogate_bytes, surrogate_bytes, 0)
    return ChannelMask(current.kept, gates, Passes(), (cutting,), (_feedback(master, surrogate_bytes),))


def entropies(outputs: Tensor, task: Task) -> Tensor:
    """Return the mean entropy of each frame in nats; a detector's sums over its independent classes."""
    if task.name == "detection":
        scores = outputs[:, :-SIDES]
        logs = torch.cat([F.logsigmoid(scores), F.logsigmoid(-scores)], dim=1)
    else:
        logs = F.log_softmax(outputs, dim=1)
    each = -(logs.exp() * logs).sum(dim=1)
    return each.reshape(len(each), -1).mean(dim=1)


def _selection_passes(master: Master, images: npt.NDArray[np.uint8]) -> Passes:
    """Return the pass of all samples through the master and its gates; constant gates cost nothing."""
    constant = any(isinstance(gate, gating.ConstantGate) for gate in master.gated.gates)
    whole = count_cost(master.network if constant else master.gated, images.shape[1], images.shape[2])
    batches = [min(FRAMES_PER_PASS, len(images) - start) for start in range(0, len(images), FRAMES_PER_PASS)]
    layers = tuple(layer.of_batch(frames) for frames in batches for layer in whole.layers)
    return Passes(others=layers, kept_bytes=whole.weight_bytes)


def _feedback(master: Master, surrogate_bytes: int) -> LayerCost:
    """Return the update of the master by a surrogate: Eq. 3 and 4 for each layer.

    Reads the surrogate as cut and as trained, the knowledge and both mixings; writes knowledge and master.
    """
    links = master.links.values()
    macs = sum(2 * len(link.mixing) * link.entries.numel() for link in links if link.mixing is not None)
    mixing_bytes = sum(WEIGHT_BYTES * link.mixing.numel() for link in links if link.mixing is not None)
    known_bytes = sum(WEIGHT_BYTES * link.entries.numel() for link in links)
    read_bytes = 2 * surrogate_bytes + known_bytes + 2 * mixing_bytes
    return LayerCost(FEEDBACK, "MatMul", macs, 0, read_bytes, known_bytes + stored_bytes(master.network), 0)


def cut_by(master: Master, which: int, mask: ChannelMask) -> Master:
    """Return the master with the surrogate of a keep ratio reassembled from the selected channels."""
    groups = [site.group for site in master.gated.sites]
    if mask.kept.keys() != set(groups):
        raise RequestError(f"the channel mask is of other groups than {', '.join(groups)}")
    for site in master.gated.sites:
        keep = gating.keep_count(site.size, master.ratios[which], master.gated.min_keep)
        if (count := len(mask.kept[site.group])) != keep:
            raise RequestError(f"the channel mask keeps {count} channels of '{site.group}', not {keep}")
    network, gates = master.at_ratio(which).network, {}
    for site in master.gated.sites:
        places = gating.kept_places(site, torch.from_numpy(np.array(mask.kept[site.group])))
        gate = mask.gates.get(site.group)
        gates[site.group] = torch.ones(int(places.sum())) if gate is None else torch.from_numpy(np.array(gate))
    model = gating.cut_gated(network, master.groups, master.gated.sites, dict(mask.kept), gates)
    return _with_cut(master, which, Cut(dict(mask.kept), state_of(model)))


def surrogate_of(master: Master, which: int) -> nn.Module:
    """Build the current surrogate of a keep ratio."""
    current = master.cuts[which]
    ones = {
        site.group: torch.ones(int(gating.kept_places(site, torch.from_numpy(current.kept[site.group])).sum()))
        for site in master.gated.sites
    }
    model = gating.cut_gated(master.network, master.groups, master.gated.sites, dict(current.kept), ones)
    restore_entries(model, current.state)
    return model


def _norm_rows(gated: GatedNetwork, lifted: Mapping[str, Tensor], scope: NormScope) -> dict[str, Tensor]:
    """Return for each batch norm the channels that are fed back, as ones and zeros."""
    behind_gates, rows = {site.norm for site in gated.sites}, {}
    for name, norm in batch_norms(gated.network).items():
        changed = [lifted[one] != 0 for own in ("weight", "bias") if (one := f"{name}.{own}") in lifted]
        whole = torch.full((norm.num_features,), scope == "all" or (scope == "gated" and name in behind_gates))
        rows[name] = (torch.stack(changed).any(dim=0) if scope == "trained" and changed else whole).double()
    return rows


def _with_cut(master: Master, which: int, surrogate: Cut) -> Master:
    return replace(master, cuts=tuple(surrogate if k == which else other for k, other in enumerate(master.cuts)))


# Master DNN updating --------------------------------------------------------------------------------------------------


def feed_back(
    master: Master, surrogate: nn.Module, absorb_alpha: float, bn_alpha: float, bn_scope: NormScope = "all"
) -> Master:
    """Return the master after a surrogate was trained.

    The surrogate's changes since it was cut or last fed back update it.

    Filters change through the knowledge of their layer, biases and batch norms by a share of their change; statistics
    change for the surrogate's keep ratio only. The head and the gates stay.
    """
    which, state = _find_ratio(master, surrogate), state_of(surrogate)
    before = master.cuts[which]
    changes = {
        name: torch.from_numpy(state[name].astype(np.float64) - old)
        for name, old in before.state.items()
        if old.dtype.kind == "f" and not name.endswith(".gate")
    }
    lifted = lift(changes, master.groups, before.kept)
    gated = copy_model(master.gated)
    # Eq. 3 for all filters of a layer, then Eq. 4: mixed one by one, later filters would read outdated knowledge.
    links = {
        name: link.store_change(lifted[f"{name}.weight"].flatten(1), absorb_alpha)
        for name, link in master.links.items()
    }
    mix_layers(gated.network, links)
    # Beyond the paper: biases, batch norms and statistics.
    statistics = set(statistic_names(gated.network))
    rows = _norm_rows(gated, lifted, bn_scope)
    with torch.no_grad():
        for name, value in gated.network.named_parameters():
            layer = name.rpartition(".")[0]
            if layer in links and name.endswith(".bias"):
                value.add_((absorb_alpha * lifted[name]).to(value))
            elif layer in rows:
                value.add_((bn_alpha * rows[layer] * lifted[name]).to(value))
    measured = {
        name: (old + bn_alpha * (rows[name.rpartition(".")[0]] * lifted[name]).numpy()).astype(old.dtype)
        if name in lifted and name in statistics
        else old
        for name, old in master.statistics[which].items()
    }
    all_measured = tuple(measured if k == which else old for k, old in enumerate(master.statistics))
    return _with_cut(replace(master, gated=gated, links=links, statistics=all_measured), which, Cut(before.kept, state))


def _find_ratio(master: Master, network: nn.Module) -> int:
    """Find the keep ratio of a surrogate by its shapes."""
    shapes = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    for which, surrogate in enumerate(master.cuts):
        if {name: value.shape for name, value in surrogate.state.items()} == shapes:
            return which
    raise RequestError(f"This {type(network).__name__} is none of the master's {len(master)} surrogates.")


# Storage --------------------------------------------------------------------------------------------------------------


def store(master: Master) -> Weights:
    """Return a master as plain arrays by name."""
    arrays: dict[str, npt.NDArray[np.generic]] = {
        "ratios": np.array(master.ratios),
        "accuracies": np.array(master.val_accuracies),
        "judged": np.array(master.test_accuracies),
        **{f"master/{name}": array for name, array in state_of(master.gated).items()},
    }
    for name, link in master.links.items():
        if link.mixing is not None:
            arrays[f"mixing/{name}"] = np.array(link.mixing.cpu().numpy())
            arrays[f"entries/{name}"] = np.array(link.entries.cpu().numpy())
    for which, (statistics, surrogate) in enumerate(zip(master.statistics, master.cuts, strict=True)):
        arrays |= {f"statistics/{which}/{name}": array for name, array in statistics.items()}
        arrays |= {f"kept/{which}/{name}": array for name, array in surrogate.kept.items()}
        arrays |= {f"surrogate/{which}/{name}": array for name, array in surrogate.state.items()}
    return arrays


def restore(model: nn.Module, arrays: Weights, size: tuple[int, int], gates: gating.GateKind, ungated: int) -> Master:
    """Restore a stored master of this model, for frames of this size."""
    example = torch.zeros(1, 3, *size, device=device_of(model))
    channel_groups = groups(model, example)
    sites, _ = gating.find_sites(model, channel_groups, example)
    with torch.random.fork_rng(devices=()):
        gated = GatedNetwork(copy_model(model), sites[ungated:], kind=gates).to(device_of(model)).eval()
    restore_entries(gated, _part(arrays, "master/"))
    links = {
        name: _link(gated.network, name, arrays)
        for name in layers_with_knowledge(gated.network, head_of(gated.network, example))
    }
    ratios = tuple(arrays["ratios"].tolist())
    statistics = tuple(_part(arrays, f"statistics/{which}/") for which in range(len(ratios)))
    cuts = tuple(
        Cut(
            {name: channels.astype(np.int64) for name, channels in _part(arrays, f"kept/{which}/").items()},
            _part(arrays, f"surrogate/{which}/"),
        )
        for which in range(len(ratios))
    )
    accuracies = (tuple(arrays[name].tolist()) for name in ("accuracies", "judged"))
    return Master(gated, channel_groups, links, ratios, statistics, cuts, *accuracies)


def _link(network: nn.Module, name: str, arrays: Weights) -> LayerLink:
    if f"mixing/{name}" not in arrays:
        return LayerLink(None, network.get_submodule(name).get_parameter("weight").detach().double().flatten(1).clone())
    device = device_of(network)
    mixing, entries = (torch.from_numpy(np.array(arrays[f"{what}/{name}"])) for what in ("mixing", "entries"))
    return LayerLink(mixing.to(device), entries.to(device))


def _part(arrays: Weights, prefix: str) -> dict[str, npt.NDArray[np.generic]]:
    return {name.removeprefix(prefix): np.array(value) for name, value in arrays.items() if name.startswith(prefix)}
