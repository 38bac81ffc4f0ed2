"""Compare channel groups of torchvision's classifiers with Torch-Pruning's; prints one JSON line.

    python benchmarks/surgery_coverage.py                                  some small networks
    python benchmarks/surgery_coverage.py --all --page docs/channel-surgery.md     all, and the table of that page

A third of every group is cut. `difference` compares the outputs of the cut network and of a masked one, in which the
remaining channels do not read removed ones, relative to the largest output; both have the same random weights and
input. Torch-Pruning is optional: without it (`pip install torch-pruning`) its columns stay empty. Images have 64 pixels
a side if the network accepts them.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from _shared import options_of, report
from torch import Tensor, nn

from driftlab._torchvision import import_torchvision
from driftlab.platform.networks.cost_counter import tensors_in
from driftlab.platform.networks.pruning import surgery

SMALL = ("googlenet", "mnasnet0_5", "mobilenet_v3_small", "shufflenet_v2_x0_5", "squeezenet1_1")
SIDES_PX = (64, 224, 299)
LIMIT_S = 60
CLASSES = 1000  # outputs, which are not cut
LIMIT_PARAMETERS = 200_000_000  # copies of larger networks do not fit into the memory of a small machine
PLACE = re.compile(r"(<!-- surgery coverage -->\n).*?(<!-- end of surgery coverage -->)", re.DOTALL)
HEAD = """| network | groups | Torch-Pruning | difference | Torch-Pruning | trains | Torch-Pruning | |
|---|---|---|---|---|---|---|---|"""
EXACT = 1e-3  # a larger difference is more than rounding


@dataclass(frozen=True)
class Result:
    """The result of one library on a network; a failure is a word instead of a number."""

    groups: int | str
    difference: float | None = None
    trains: bool | None = None


@dataclass(frozen=True)
class CoverageRow:
    """The results of both libraries on one network."""

    network: str
    ours: Result
    theirs: Result | None


class TooSlow(Exception):
    """A network exceeded the time limit."""


@contextmanager
def limited() -> Iterator[None]:
    """Raise after the time limit."""

    def stop(*_: object) -> None:
        raise TooSlow(f"more than {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def parameters_of(name: str) -> int:
    return int(import_torchvision().models.get_model_weights(name).DEFAULT.meta["num_params"])


def build(name: str) -> nn.Module | None:
    """Build a network in which every layer matters; None where it is too large."""
    models = import_torchvision().models
    options = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    if parameters_of(name) > LIMIT_PARAMETERS:
        return None
    torch.manual_seed(0)
    model = models.get_model(name, weights=None, **options).eval()
    for key, tensor in model.state_dict().items():
        if tensor.is_floating_point() and "relative" not in key:
            tensor.normal_(0, max(1, tensor[0].numel()) ** -0.5 if tensor.dim() > 1 else 0.5)
            if "var" in key or (tensor.dim() == 1 and key.endswith("weight")):
                tensor.abs_().add_(0.5)
    return model


def image_for(model: nn.Module) -> Tensor:
    """Return noise of the smallest size that the network takes."""
    for side in SIDES_PX:
        image = torch.randn(1, 3, side, side)
        try:
            predict_image(copy.deepcopy(model).train(), image.repeat(2, 1, 1, 1))
        except (RuntimeError, AssertionError, ValueError):
            continue
        return image
    raise ValueError(f"no image of {SIDES_PX} pixels suits the network")


def predict_image(model: nn.Module, image: Tensor) -> Tensor:
    with torch.no_grad():
        return next(iter(tensors_in(model(image))))


def relative_difference(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-30))


def trains(model: nn.Module, image: Tensor) -> bool:
    """Try one training step."""
    try:
        made = model.train()(image.repeat(2, 1, 1, 1))
        outputs = [each.square().mean() for each in tensors_in(made)]
        torch.autograd.backward(torch.stack(outputs).sum())
        torch.optim.SGD(model.parameters(), 1e-3).step()
    except Exception:  # torch may raise anything for shapes that do not fit
        return False
    return True


def ours(model: nn.Module, image: Tensor) -> Result:
    found = surgery.groups(model, image)
    keep = {name: [k for k in range(size) if k % 3 != 1] for name, size in found.sizes.items() if size > 1}
    small = surgery.cut(model, found, keep)
    off = relative_difference(predict_image(small, image), predict_image(surgery.mask(model, found, keep), image))
    return Result(len(found.sizes), off, trains(small, image))


def theirs(model: nn.Module, image: Tensor) -> Result:
    """Cut every group of Torch-Pruning but the outputs; groups that are cut together count once."""
    import torch_pruning as tp

    ends = [module for module in model.modules() if _outputs(module) == CLASSES]
    graph = tp.DependencyGraph().build_dependency(model, example_inputs=image)
    plans = []
    for group in graph.get_all_groups(ignored_layers=ends, root_module_types=[nn.Conv2d, nn.Linear]):
        root = group[0].dep
        size = _outputs(root.target.module)
        blocks = max(_blocks(dep.target.module) for dep, _ in group)
        gone = [k for k in range(size) if k % (size // blocks) % 3 == 1]  # the same in every block
        if 0 < len(gone) < size:
            plans.append((root.target.module, root.handler, gone))
    masked = copy.deepcopy(model)
    twins = dict(zip(model.modules(), masked.modules(), strict=True))
    readers = (tp.prune_conv_in_channels, tp.prune_linear_in_channels)
    for module, prune, gone in plans:
        for dep, places in graph.get_pruning_group(module, prune, gone):
            if dep.handler in readers:
                weight = twins[dep.target.module].weight.data
                weight[:, [place % weight.shape[1] for place in places]] = 0
    expected = predict_image(masked, image)
    for module, prune, gone in plans:
        graph.get_pruning_group(module, prune, gone).prune()
    return Result(len(plans), relative_difference(predict_image(model, image), expected), trains(model, image))


def _outputs(module: nn.Module) -> int:
    return int(getattr(module, "out_features", getattr(module, "out_channels", 0)))


def _blocks(module: nn.Module) -> int:
    """Return the blocks of a grouped convolution; 1 for a depthwise one."""
    return module.groups if isinstance(module, nn.Conv2d) and module.groups < module.out_channels else 1


def attempt(count: Callable[[nn.Module, Tensor], Result], model: nn.Module, image: Tensor) -> Result:
    """Run one library, and record its error."""
    try:
        with limited():
            return count(copy.deepcopy(model), image)
    except TooSlow as error:
        return Result(str(error))
    except Exception as error:
        return Result(f"stops ({type(error).__name__})")


def measure(name: str, compare: bool) -> CoverageRow | None:
    """Run both libraries on one network; None where it is not measured."""
    try:
        with limited():
            model = build(name)
            if model is None:
                return None
            image = image_for(model)
    except TooSlow:
        return None
    return CoverageRow(name, attempt(ours, model, image), attempt(theirs, model, image) if compare else None)


def cells(result: Result | None) -> tuple[str, str, str]:
    """Format groups, difference and whether it trains."""
    if result is None or isinstance(result.groups, str):
        return "–" if result is None else str(result.groups), "–", "–"
    off = "–" if result.difference is None else f"{result.difference:.0e}"
    return str(result.groups), off, "yes" if result.trains else "no"


def note(row: CoverageRow) -> str:
    """Return a note where the other library has more groups: they are wrong, or ours are incomplete."""
    here, there = row.ours.groups, row.theirs.groups if row.theirs else None
    if not isinstance(here, int) or not isinstance(there, int) or there <= here or row.theirs is None:
        return ""
    return "not reached" if (row.theirs.difference or 0) < EXACT else "theirs is another network"


def table(rows: list[CoverageRow]) -> str:
    """Format the rows as a table."""
    lines = []
    for row in rows:
        pairs = zip(cells(row.ours), cells(row.theirs), strict=True)
        lines.append("| " + " | ".join([row.network, *(cell for pair in pairs for cell in pair), note(row)]) + " |")
    return "\n".join([HEAD, *lines, ""])


def write(page: Path, rows: list[CoverageRow]) -> None:
    text = page.read_text(encoding="utf-8")
    page.write_text(PLACE.sub(lambda place: place[1] + table(rows) + place[2], text), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=SMALL)
    parser.add_argument("--all", action="store_true", help="every classifier of torchvision")
    parser.add_argument("--page", type=Path, help="write the table into this page")
    options = options_of(parser, networks=["squeezenet1_1"])
    torch.set_num_threads(1)
    names = options.networks
    if options.all:
        models = import_torchvision().models
        names = sorted(models.list_models(module=models), key=parameters_of)
    compare = importlib.util.find_spec("torch_pruning") is not None
    rows: list[CoverageRow] = []
    for name in names:
        row = measure(name, compare)
        sys.stderr.write(f"{json.dumps(asdict(row)) if row else name + ': too large or too slow'}\n")
        rows += [row] if row else []
        if options.page:
            write(options.page, sorted(rows, key=lambda row: row.network))
    line: dict[str, Any] = {
        "benchmark": "surgery_coverage",
        "networks": len(rows),
        "groups": sum(row.ours.groups for row in rows if isinstance(row.ours.groups, int)),
        "exact": sum((row.ours.difference or 0) < EXACT for row in rows),
        "exact_goal": len(rows),
        "train": sum(bool(row.ours.trains) for row in rows),
        "train_goal": len(rows),
    }
    report(line)


if __name__ == "__main__":
    main()
