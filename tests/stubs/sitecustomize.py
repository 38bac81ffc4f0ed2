"""Make the tests' processes faster; Python imports this module at its start."""

from __future__ import annotations

import gc
import importlib
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

LAZY = {"requests", "jsonschema"}  # Ray imports these in every process, and few use them

gc.set_threshold(20_000, 20, 20)  # searches for garbage take a tenth of the time of imports, and 5 % of the tests'
os.fsync = lambda file: None  # a run waits for the disk hundreds of times; tests that cut the power record each call


class LazyModule(ModuleType):
    """Stands for a module until one of its attributes is used, or a module in it is imported."""

    def __getattr__(self, name: str) -> Any:
        if name == "__file__":  # `inspect` asks every module for it
            raise AttributeError(name)
        LAZY.discard(self.__name__)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


class LazyImports:
    """Finds the modules that are imported when they are used."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in LAZY else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to Python to make an ordinary module first."""

    def exec_module(self, module: ModuleType) -> None:
        module.__class__ = LazyModule


if __name__ == "sitecustomize":  # not in the process that runs this file to replace the functions
    sys.meta_path.insert(0, LazyImports())  # type: ignore[arg-type]
