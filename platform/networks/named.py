"""Networks by name: of the zoo, of torchvision and timm, and of a factory in a user's file or package."""

from __future__ import annotations

import importlib
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

from driftlab.errors import RequestError, first_line, needed_import, unknown_name
from driftlab.platform.core import plugins
from driftlab.platform.networks.tasks.tasks import CLASSIFICATION, SEGMENTATION, TASKS, Task
from driftlab.platform.networks.zoo import IMAGENET, ZOO, Input, ZooEntry

if TYPE_CHECKING:
    from torch import nn

TORCHVISION, TIMM = "torchvision:", "timm:"
EXAMPLE = 'def make(classes, height, width): return MyNet(classes), then make.task = "segmentation"'


def find(name: str) -> ZooEntry:
    """Return the entry of a network of the zoo, a library (`torchvision:resnet34`) or a file."""
    if name in ZOO:
        return ZOO[name]
    if not plugins.is_outside(name):
        raise unknown_name("network", name, ZOO)
    return _entry_of(name)


def known(name: str) -> bool:
    """Return whether a network exists; its fault is reported where the request is checked."""
    with suppress(RequestError):
        find(name)
        return True
    return False


def task_of(name: str) -> Task:
    """Return the task of a network."""
    return find(name).task


@cache
def _entry_of(name: str) -> ZooEntry:
    """Return task and summary of a network from outside; RequestError without a task."""
    if name.startswith(TORCHVISION):
        from driftlab.platform.networks.published.library import has_pixels

        task = SEGMENTATION if has_pixels(name.removeprefix(TORCHVISION)) else CLASSIFICATION
        return ZooEntry(task, "from torchvision", (), "", IMAGENET)
    if name.startswith(TIMM):
        return ZooEntry(CLASSIFICATION, "from timm", (), "", IMAGENET)
    factory = plugins.find_factory("network", name)
    task_name = getattr(factory, "task", None)
    if task_name not in TASKS:
        raise RequestError(
            f"network '{name}': its task is {task_name!r}; set the attribute task of the function or class to "
            f"{', '.join(TASKS)}, as in: {EXAMPLE}."
        )
    return ZooEntry(TASKS[str(task_name)], (factory.__doc__ or "from a user's file").strip().partition("\n")[0], (), "")


def make(name: str, classes: int, size: tuple[int, int]) -> nn.Module:
    """Build a network from outside the zoo; RequestError for a factory that fails."""
    from torch import nn

    if name.startswith(TORCHVISION):
        from driftlab.platform.networks.published import library

        return library.make_any(name.removeprefix(TORCHVISION), classes)
    if name.startswith(TIMM):
        return _make_timm(name.removeprefix(TIMM), classes)
    factory = plugins.find_factory("network", name)
    try:
        made = factory(classes, *size)
    except Exception as error:  # a user's file may fail in any way
        call = f"{name.rpartition(':')[2]}({classes}, {size[0]}, {size[1]})"
        raise RequestError(f"network '{name}': {call} raises {type(error).__name__}: {first_line(error)}") from error
    if not isinstance(made, nn.Module):
        raise RequestError(f"network '{name}': it returns {type(made).__name__}, expected a torch.nn.Module")
    return made


def _make_timm(name: str, classes: int) -> nn.Module:
    """Build a network of timm with the input that its own settings state."""
    from driftlab.platform.networks.published.library import Published

    with needed_import(f"Network 'timm:{name}' needs timm", "Install it: `pip install 'driftlab[timm]'`."):
        timm: Any = importlib.import_module("timm")
    if not timm.is_model(name):
        raise unknown_name("network of timm", name, timm.list_models())
    network = timm.create_model(name, pretrained=False, num_classes=classes)
    facts = network.pretrained_cfg
    size, fixed = tuple(facts["input_size"][1:]), bool(facts.get("fixed_input_size"))
    return Published(network, Input(size, tuple(facts["mean"]), tuple(facts["std"]), fixed))
