"""The folder of built networks, and the states of trainings under way for other processes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from driftlab.platform.networks.training.artifacts import Recipe

FOLDER_VARIABLE = "DRIFTLAB_CACHE"


def cache_folder() -> Path:
    """Return the folder of built networks."""
    import platformdirs

    folder = os.environ.get(FOLDER_VARIABLE)
    return Path(folder).absolute() if folder else platformdirs.user_cache_path("driftlab") / "networks"


def note_step(recipe: Recipe, step: int, loss: float) -> None:
    """Write the state of a training next to the network, for the process that waits for it."""
    if (file := _training_file(recipe)).parent.is_dir():
        file.write_text(json.dumps([step, recipe.steps, loss]), encoding="utf-8")


def training_of(recipe: Recipe) -> tuple[int, int, float] | None:
    """Return step, number of steps and loss of a training on this computer; None while there is none."""
    try:
        step, steps, loss = json.loads(_training_file(recipe).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # also while it is being written
        return None
    return step, steps, loss


def end_training(recipe: Recipe) -> None:
    """Remove the state of a training."""
    _training_file(recipe).unlink(missing_ok=True)


def _training_file(recipe: Recipe) -> Path:
    return cache_folder() / f"{recipe.key()}.training"
