"""Make torchvision importable with a torch that it was not built for.

PyPI's Linux wheels of torchvision are CUDA builds. With a CPU-only torch their compiled library does not load, and the
import fails at the first operator that it registers. Only in that case this module defines the missing operators before
the import, and a CPU kernel of non-maximum suppression. It has no effect before the first import of torchvision.

Unavailable with such a torch: the image codecs of torchvision.io and the compiled operators without a fallback
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
_MISSING = ("nms", "qnms")  # operators that torchvision registers at import even without its library
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def hook() -> None:
    """Install the import hook for torchvision; a second call has no effect."""
    if _PACKAGE not in sys.modules and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds torchvision once, and wraps its loader if the compiled library does not load."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _PACKAGE:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(_PACKAGE)
        if spec is None or spec.loader is None or library_loads(spec):
            return spec
        spec.loader = _FallbackLoader(spec.loader)
        return spec


class _FallbackLoader(Loader):
    """torchvision's loader, which first defines the missing operators."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        import torch

        # Operators are removed with their library object, so it is stored in this loader, which the package references.
        self._library = torch.library.Library(_PACKAGE, "FRAGMENT")
        for name in _MISSING:
            self._library.define(name + _SCHEMA)
        self._library.impl("nms", non_maximum_suppression, "CPU")
        self._loader.exec_module(module)
        sys.modules["torchvision.ops.boxes"].__dict__["_assert_has_ops"] = _skip_check


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
        import torchvision
    except ModuleNotFoundError as error:
        if error.name != _PACKAGE:  # torchvision exists, but a package that it imports is missing
            raise
        return "absent"
    spec = torchvision.__spec__
    return "mended" if spec is not None and isinstance(spec.loader, _FallbackLoader) else "works"
