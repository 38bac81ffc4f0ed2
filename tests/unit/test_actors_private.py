"""The private names of Ray that driftlab uses; a version of Ray without them fails here."""

from __future__ import annotations

import ast
import inspect
from importlib import import_module
from pathlib import Path

import pytest

import driftlab
from driftlab.actors import cluster
from driftlab.actors.actors import ACTORS

USED = {  # names by module
    "ray._private.services": ("resolve_ip_for_localhost", "canonicalize_bootstrap_address_or_die"),
    "ray._private.authentication.authentication_token_setup": ("maybe_enable_token_auth_if_token_available",),
    "ray._private.ray_logging": ("stdout_deduplicator",),
    "ray._private.node": ("Node",),
    "ray._raylet": ("GcsClient",),
    "ray.serve._private.replica": ("add_port_to_grpc_server",),
}
METADATA = "__ray_metadata__"  # attribute of an actor class
PACKAGE = Path(driftlab.__file__).parent
FILES = [file for folder in (PACKAGE, *PACKAGE.iterdir()) if folder.is_dir() for file in sorted(folder.rglob("*.py"))]


def is_private(module: str) -> bool:
    return module.startswith("ray.") and any(part.startswith("_") for part in module.split("."))


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in USED.items() for name in names])
def test_ray_has_the_private_names_that_driftlab_uses(module, name):
    assert hasattr(import_module(module), name), f"{module}.{name}: see its use in actors/ and serve_apps/"


def test_the_replaced_functions_take_the_arguments_that_driftlab_expects():
    assert list(inspect.signature(cluster.services.resolve_ip_for_localhost).parameters) == ["host"]
    assert all(callable(getattr(cluster.Node, name)) for name in cluster.UNUSED)
    assert hasattr(import_module("ray._private.ray_logging").stdout_deduplicator, "skip_re")
    assert getattr(ACTORS["device"], METADATA).class_name == "EdgeDevice"


def test_no_other_private_name_is_used():
    found, attributes = set(), set()
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                found |= {f"{node.module}.{one.name}" for one in node.names}
            elif isinstance(node, ast.Import):
                found |= {one.name for one in node.names}
            elif isinstance(node, ast.Attribute) and node.attr.startswith("__ray"):
                attributes.add(node.attr)
    modules = {*USED, *(f"{module}.{name}" for module, names in USED.items() for name in names)}
    private = {name for name in found if is_private(name)}
    assert private <= modules
    assert {module for module in USED if not any(f"{name}.".startswith(f"{module}.") for name in private)} == set()
    assert attributes == {METADATA}
