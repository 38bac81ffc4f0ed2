"""Make every process of Ray listen on the loopback interface only, where PYTHONPATH has this folder."""

from __future__ import annotations

import importlib.util
import sys
from importlib.abc import MetaPathFinder

SERVICES = "ray._private.services"


class LoopbackOnly(MetaPathFinder):
    """Replaces the function by which Ray replaces a loopback address, once its module is imported."""

    def find_spec(self, name, path=None, target=None):
        if name != SERVICES:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        usual = spec.loader.exec_module

        def exec_module(module):
            usual(module)
            module.resolve_ip_for_localhost = lambda host: host

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, LoopbackOnly())
