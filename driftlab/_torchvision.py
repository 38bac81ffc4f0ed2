"""Import torchvision with a torch that it was not built for.

PyPI's Linux wheels of torchvision are CUDA builds. With a CPU-only torch their compiled library cannot load, and the
import fails at the first operator that it describes. Only in that case, `import_torchvision` defines the missing
operators just before the import and gives non-maximum suppression a kernel.

Unavailable with such a torch: the image codecs of torchvision.io and the compiled operators without a fallback
(deformable convolution, the other region poolings).
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, FileFinder, ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor
    from torch.library import Library

_PACKAGE = "torchvision"
_MISSING = ("nms", "qnms")  # operators that torchvision registers at import even without its library
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_DEFINED: list[Library] = []  # an operator lives as long as the library object that defined it


def import_torchvision() -> ModuleType:
    """Import torchvision, with the missing operators if its library does not load; else ImportError."""
    spec = None if _PACKAGE in sys.modules else find_spec(_PACKAGE)
    if spec is None or library_loads(spec):
        return import_module(_PACKAGE)
    _define_operators()
    module = import_module(_PACKAGE)
    sys.modules["torchvision.ops.boxes"].__dict__["_assert_has_ops"] = _skip_check
    return module


def _define_operators() -> None:
    import torch

    if _DEFINED:
        return
    library = torch.library.Library(_PACKAGE, "FRAGMENT")
    for name in _MISSING:
        library.define(name + _SCHEMA)
    library.impl("nms", non_maximum_suppression, "CPU")
    _DEFINED.append(library)


def library_loads(spec: ModuleSpec) -> bool:
    """Return whether torchvision's compiled library exists and loads with this torch."""
    folders = spec.submodule_search_locations or ()
    suffixes = (ExtensionFileLoader, EXTENSION_SUFFIXES)
    libraries = [lib for folder in folders if (lib := FileFinder(folder, suffixes).find_spec("_C")) is not None]
    if not libraries or libraries[0].origin is None:
        return False
    import torch

    try:
        torch.ops.load_library(libraries[0].origin)
    except OSError:
        return False
    return True


def non_maximum_suppression(dets: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Return the rows of boxes to keep, best first: those that overlap no better one above the threshold."""
    import torch

    left, top, right, bottom = dets.unbind(1)
    areas = (right - left) * (bottom - top)
    rest = scores.argsort(descending=True, stable=True)
    kept = []
    while rest.numel():
        best, rest = rest[0], rest[1:]
        kept.append(best)
        width = (torch.minimum(right[best], right[rest]) - torch.maximum(left[best], left[rest])).clamp(min=0)
        height = (torch.minimum(bottom[best], bottom[rest]) - torch.maximum(top[best], top[rest])).clamp(min=0)
        shared = width * height
        rest = rest[~(shared / (areas[best] + areas[rest] - shared) > iou_threshold)]
    return torch.stack(kept) if kept else rest


def _skip_check() -> None:
    """Replace torchvision's check that its compiled library is loaded."""


def state() -> Literal["absent", "works", "mended"]:
    """Import torchvision and return the outcome; `mended`: with the operators of this module."""
    try:
        import_torchvision()
    except ModuleNotFoundError as error:
        if error.name != _PACKAGE:  # torchvision exists, but a package that it imports is missing
            raise
        return "absent"
    return "mended" if _DEFINED else "works"
