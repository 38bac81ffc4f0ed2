"""Files of weights that users give. Importing this module does not import torch."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from driftlab.errors import RequestError, first_line

if TYPE_CHECKING:
    import torch

PICKLED = (".pt", ".pth")


def digest_of(path: str) -> str:
    """Return the hash of a file of weights; refuse any other file."""
    from safetensors import SafetensorError, safe_open

    file = Path(path).expanduser()
    try:
        if file.suffix in PICKLED:
            _unpickled(file)
        else:
            with safe_open(file, framework="np") as kept:
                kept.keys()
        return hashlib.sha256(file.read_bytes()).hexdigest()[:20]
    except (SafetensorError, OSError, ValueError) as error:
        raise RequestError(
            f"Weights cannot be read from '{path}' ({first_line(error)}). Give a safetensors file, which "
            "`safetensors.torch.save_file(model.state_dict(), FILE)` writes, or a .pt file of "
            "`torch.save(model.state_dict(), FILE)`."
        ) from error


def read_weights(path: str) -> dict[str, torch.Tensor]:
    """Load the tensors of a file that `digest_of` accepts, by name."""
    from safetensors.torch import load_file

    file = Path(path).expanduser()
    return _unpickled(file) if file.suffix in PICKLED else load_file(file)


def _unpickled(file: Path) -> dict[str, torch.Tensor]:
    """Load a state dict that torch saved, without running code of the file; ValueError for other contents."""
    import torch

    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # a damaged file fails in many ways
        raise ValueError(f"torch cannot load it with weights_only=True: {first_line(error)}") from error
    for name in ("state_dict", "model"):  # of a checkpoint
        found = found[name] if isinstance(found, dict) and isinstance(found.get(name), dict) else found
    if not isinstance(found, dict) or not found or not all(isinstance(one, torch.Tensor) for one in found.values()):
        raise ValueError("it holds no state dict")
    return dict(found)
