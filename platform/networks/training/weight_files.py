"""Files of weights that users give. Importing this module does not import torch."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import TYPE_CHECKING

from driftlab.errors import RequestError, first_line
from driftlab.platform.core.plugins import content_of

if TYPE_CHECKING:
    import torch

PICKLED = (".pt", ".pth")


def digest_of(path: str) -> str:
    """Return the hash of a file of weights; refuse any other file."""
    from safetensors import SafetensorError, deserialize

    try:
        content = content_of(path)
        if Path(path).suffix in PICKLED:
            _unpickled(content)
        else:
            deserialize(content)  # type: ignore[no-untyped-call]
        return hashlib.sha256(content).hexdigest()[:20]
    except (SafetensorError, OSError, ValueError) as error:
        raise RequestError(
            f"Weights cannot be read from '{path}' ({first_line(error)}). Give a safetensors file, which "
            "`safetensors.torch.save_file(model.state_dict(), FILE)` writes, or a .pt file of "
            "`torch.save(model.state_dict(), FILE)`."
        ) from error


def read_weights(path: str) -> dict[str, torch.Tensor]:
    """Load the tensors of a file that `digest_of` accepts, by name."""
    from safetensors.torch import load

    content = content_of(path)
    return _unpickled(content) if Path(path).suffix in PICKLED else load(content)


def _unpickled(content: bytes) -> dict[str, torch.Tensor]:
    """Load a state dict that torch saved, without running code of the file; ValueError for other contents."""
    import torch

    try:
        found = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file fails in many ways
        raise ValueError(f"torch cannot load it with weights_only=True: {first_line(error)}") from error
    for name in ("state_dict", "model"):  # of a checkpoint
        found = found[name] if isinstance(found, dict) and isinstance(found.get(name), dict) else found
    if not isinstance(found, dict) or not found or not all(isinstance(one, torch.Tensor) for one in found.values()):
        raise ValueError("it holds no state dict")
    return dict(found)
