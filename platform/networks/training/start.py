"""Weights from a file, from which a network begins instead of at random."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from driftlab.errors import RequestError, first_line

if TYPE_CHECKING:
    from torch import nn

COUNTER = "num_batches_tracked"  # of batch norms, which some files leave out
SHOWN = 3  # names in a message


def digest_of(path: str) -> str:
    """Hash the file, and refuse one that holds no weights."""
    from safetensors import SafetensorError, safe_open

    file = Path(path).expanduser()
    try:
        with safe_open(file, framework="np") as kept:
            kept.keys()
        return hashlib.sha256(file.read_bytes()).hexdigest()[:20]
    except (SafetensorError, OSError) as error:
        raise RequestError(
            f"Weights cannot be read from '{path}' ({first_line(error)}). Give a safetensors file; "
            "`safetensors.torch.save_file(model.state_dict(), FILE)` writes one."
        ) from error


def begin_from(model: nn.Module, path: str, head: str, *, trained: bool) -> None:
    """Copy a file's weights into the network; a head for other classes stays random if it is trained afterwards."""
    from safetensors.torch import load_file

    given, own = load_file(Path(path).expanduser()), model.state_dict()
    if "network." in next(iter(own)) and not any(name.startswith("network.") for name in given):
        given = {f"network.{name}": value for name, value in given.items()}  # as the library names them
    anew = {name for name in own if trained and name.startswith(f"{head}.")}
    fits = {name: value for name, value in given.items() if name in own and value.shape == own[name].shape}
    missing = [name for name in own if name not in fits and name not in anew and not name.endswith(COUNTER)]
    unknown = [name for name in given if name not in own]
    if missing or unknown:
        said = [
            f"{what} {', '.join(names[:SHOWN])}{' and more' if len(names) > SHOWN else ''}"
            for what, names in (("without or with another shape of", missing), ("with unknown", unknown))
            if names
        ]
        raise RequestError(
            f"The weights in '{path}' are of another network: {' and '.join(said)}. Where only the classes differ, "
            f"let the head '{head}' be trained: student.pretrain_steps above 0."
        )
    model.load_state_dict({**own, **fits})
