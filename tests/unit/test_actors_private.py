"""The names of Ray's private modules that driftlab uses; a version of Ray without them fails here."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

from driftlab.actors import cluster

USED = {
    "ray._private.services": "resolve_ip_for_localhost",
    "ray._private.authentication.authentication_token_setup": "maybe_enable_token_auth_if_token_available",
    "ray._private.ray_logging": "stdout_deduplicator",
    "ray._private.node": "Node",
}
FILES = sorted(Path(cluster.__file__).parent.glob("*.py"))


@pytest.mark.parametrize(("module", "name"), USED.items())
def test_ray_has_the_private_names_that_driftlab_uses(module, name):
    found = __import__(module, fromlist=[name])
    assert hasattr(found, name), f"{module}.{name}: see its use in actors/cluster.py"


def test_the_replaced_functions_take_the_arguments_that_driftlab_expects():
    assert list(inspect.signature(cluster.services.resolve_ip_for_localhost).parameters) == ["host"]
    assert all(callable(getattr(cluster.Node, name)) for name in cluster.UNUSED)
    assert hasattr(__import__("ray._private.ray_logging", fromlist=[""]).stdout_deduplicator, "skip_re")


def test_no_other_private_module_is_used():
    found = set()
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ray._private"):
                found |= {f"{node.module}.{one.name}" for one in node.names}
            elif isinstance(node, ast.Import):
                found |= {one.name for one in node.names if one.name.startswith("ray._private")}
    assert found == {
        "ray._private.services",
        "ray._private.authentication.authentication_token_setup",
        "ray._private.ray_logging",
        "ray._private.node.Node",
    }
