"""Let torchvision import beside a torch it was not built for.

PyPI's Linux wheels of torchvision are CUDA builds. Beside a CPU-only torch their compiled library cannot load, and the
import then fails at the first operator it wants to describe. Only in that case, this module defines the missing
operators just before the import and gives non-maximum suppression a kernel. Where the library loads, where torchvision
is absent, and until torchvision is imported, nothing happens.

What stays unavailable beside such a torch: torchvision.io's image codecs and the compiled operators without a fallback
(deformable convolution, the other region poolings).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, FileFinder, ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

_PACKAGE = "torchvision"
_MISSING = ("nms", "qnms")  # the operators torchvision describes at import even without its library
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def hook() -> None:
    """Watch for the first import of torchvision; calling this again changes nothing."""
    if _PACKAGE not in sys.modules and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Steps aside for good at the first import of torchvision, after wrapping its loader if that is needed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _PACKAGE:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(_PACKAGE)
        if spec is None or spec.loader is None or library_loads(spec):
            return spec
        spec.loader = _Mending(spec.loader)
        return spec


class _Mending(Loader):
    """The package's own loader, with the missing operators defined before it runs."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        import torch

        # An operator lives as long as the library object that defined it; this loader lives as long as the package.
        self._library = torch.library.Library(_PACKAGE, "FRAGMENT")
        for name in _MISSING:
            self._library.define(name + _SCHEMA)
        self._library.impl("nms", non_maximum_suppression, "CPU")
        self._loader.exec_module(module)
        sys.modules["torchvision.ops.boxes"].__dict__["_assert_has_ops"] = _nothing


def library_loads(spec: ModuleSpec) -> bool:
    """Say whether torchvision's compiled library is there and loads beside this torch."""
    folders = spec.submodule_search_locations or ()
    suffixes = (ExtensionFileLoader, EXTENSION_SUFFIXES)
    found = [lib for folder in folders if (lib := FileFinder(folder, suffixes).find_spec("_C")) is not None]
    if not found or found[0].origin is None:
        return False
    import torch

    try:
        torch.ops.load_library(found[0].origin)
    except OSError:
        return False
    return True


def non_maximum_suppression(dets: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Keep, best score first, every box that overlaps no kept box by more than the threshold."""
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


def _nothing() -> None:
    """Stand in for the check that the compiled library is loaded."""


def state() -> Literal["absent", "works", "mended"]:
    """Import torchvision and say how that went."""
    try:
        import torchvision
    except ModuleNotFoundError as error:
        if error.name != _PACKAGE:  # it is there, and something that it needs is not
            raise
        return "absent"
    spec = torchvision.__spec__
    return "mended" if spec is not None and isinstance(spec.loader, _Mending) else "works"
