"""Stored objects: equal after reading, shared ones stay shared, and no file runs code."""

from __future__ import annotations

import json
import os
from collections import OrderedDict, deque
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from safetensors.torch import save

from driftlab.errors import WireError
from driftlab.platform.core.registry import Member
from driftlab.platform.field.rounds import RoundFacts
from driftlab.platform.field.state_file import dump_objects, load_objects


def again(value):
    return load_objects(dump_objects(value))


def forged(root, *objects):
    """Return a file with these descriptions of objects."""
    return save({}, {"state": json.dumps([root, objects])})


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -3,
        1.5,
        float("inf"),
        "text",
        b"",
        b"bytes",
        [1, [2], (3, {4}), {"a": frozenset({5})}, {(1, 2): None}],
        OrderedDict(b=1, a=2),
        deque([1, 2], maxlen=3),
        range(1, 9, 2),
        np.float32(1.5),
        np.dtype("float64"),
        RoundFacts(1, 0.5, {"loss": 2.0}, None),
        RoundFacts,
    ],
)
def test_values_are_equal_after_reading(value):
    found = again(value)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize("dtype", ["uint8", "bool", "int64", "float32", "float64"])
def test_arrays_keep_shape_and_type(dtype):
    for shape in ((), (0, 3), (2, 3)):
        array = np.ones(shape, dtype=dtype)
        found = again(array)
        assert (found.dtype, found.shape, found.flags.writeable) == (array.dtype, shape, True)
        assert np.array_equal(found, array)


def test_shared_objects_and_memory_stay_shared():
    memory = torch.arange(6.0)
    layer = torch.nn.Linear(2, 2)
    first = [memory, memory[2:4], layer, layer.weight]
    first.append(first)
    found = again(first)
    found[0][2] = 9.0
    assert found[1][0] == 9.0
    assert found[2].weight is found[3]
    assert isinstance(found[3], torch.nn.Parameter)
    assert found[4] is found
    assert torch.equal(layer(torch.ones(2)), found[2](torch.ones(2)))


def test_a_generator_continues():
    generator = np.random.default_rng(3)
    generator.random(5)
    assert again(generator).random() == generator.random()


@dataclass
class Foreign:
    """A class that no stored state may have."""


@pytest.mark.parametrize("value", [Foreign(), Foreign, os.system, lambda: 0, object(), np.array([object()])])
def test_other_objects_are_not_stored(value):
    with pytest.raises((WireError, TypeError)):
        dump_objects([value])


@pytest.mark.parametrize(
    "name",
    [
        "os:system",
        "subprocess:Popen",
        "builtins:eval",
        "driftlab.platform.adaptation.plain:Plain",
        "driftlab.platform.core.plugins:Outside",
        "driftlab.platform.core.files:os",
        "driftlab.platform.nowhere:Learner",
        "driftlab.platform.field.rounds:Nothing",
        "torch.nn.modules.linear:torch",
        "torch.serialization:load",
        "driftlab.serve_apps.demo:DemoDevice",
    ],
)
def test_a_file_cannot_name_other_classes(name):
    empty = ["list", []]
    for kind in (["object", name, [1], None, [1], [1]], ["class", name], ["enum", name, "A"]):
        with pytest.raises(WireError):
            load_objects(forged([0], kind, empty))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no file",
        save({}, {}),
        save({}, {"state": "{}"}),
        forged([0], ["nothing"]),
        forged([7]),
        forged([0], ["array", "9", "uint8"]),
        forged([0, 1]),
        forged([0], ["tuple", [[0]]]),
        forged([0], ["generator", [1]], ["dict", [["bit_generator", "os"]]]),
    ],
)
def test_damaged_files_are_refused(data):
    with pytest.raises(WireError):
        load_objects(data)


def test_a_member_from_a_file_is_refused():
    with pytest.raises(WireError, match="cannot be a file"):
        again(Member("adaptation", "evil.py:Evil"))
