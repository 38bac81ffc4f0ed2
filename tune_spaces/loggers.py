"""Ray Tune's loggers that are installed: TensorBoard, MLflow, Weights & Biases."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray import tune

from driftlab.errors import RequestError, unknown_name


@dataclass(frozen=True)
class Logger:
    """A callback of Ray's, and the package that it writes with."""

    package: str
    callback: str  # module:Class
    options: Callable[[Path], Mapping[str, Any]]


LOGGERS: Mapping[str, Logger] = {
    "tensorboard": Logger("tensorboardX", "ray.tune.logger:TBXLoggerCallback", lambda folder: {}),
    "mlflow": Logger(
        "mlflow",
        "ray.air.integrations.mlflow:MLflowLoggerCallback",
        lambda folder: {"experiment_name": folder.name, "tracking_uri": f"sqlite:///{folder / 'mlflow.db'}"},
    ),
    "wandb": Logger(
        "wandb", "ray.air.integrations.wandb:WandbLoggerCallback", lambda folder: {"project": f"driftlab-{folder.name}"}
    ),
}


def loggers_of(names: Sequence[str], folder: Path) -> list[tune.Callback]:
    """Make loggers by name for the folder of a search; RequestError where a package is not installed."""
    check_loggers(names)
    made = []
    for name in names:
        module, _, cls = LOGGERS[name].callback.partition(":")
        made.append(getattr(importlib.import_module(module), cls)(**LOGGERS[name].options(folder)))
    return made


def check_loggers(names: Sequence[str]) -> None:
    """Refuse names that are not known, and loggers whose package is not there."""
    for name in names:
        if name not in LOGGERS:
            raise unknown_name("logger", name, LOGGERS)
        if importlib.util.find_spec(LOGGERS[name].package) is None:
            package = LOGGERS[name].package
            raise RequestError(f"--log {name} needs the package {package}: pip install {package}, or leave it out.")
