"""Calls and replies as bytes arrive in another process as they were sent."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest
from ray import ObjectRef

from driftlab.actors.node_host import Failure
from driftlab.actors.wire import pack_call, pack_head, unpack_call, unpack_head
from driftlab.errors import RunError

ADDRESS = ("cell#0", 0, 17, "learner", "learner", "train")
UNPACK = """
import sys
from driftlab.actors.wire import unpack_head
print(unpack_head(sys.stdin.buffer.read())[0].score)
"""


def test_payloads_return_to_their_places():
    first, second = ObjectRef(b"1" * 28), ObjectRef(b"2" * 28)
    call, references = pack_call(ADDRESS, (1.5, first, None, ("a", 2), second))
    assert references == [first, second]
    address, args = unpack_call(call, ["frames", "labels"])
    assert address == ADDRESS
    assert args == [1.5, "frames", None, ("a", 2), "labels"]


def test_a_call_lacks_no_payload():
    call, _ = pack_call(ADDRESS, (ObjectRef(b"1" * 28),))
    with pytest.raises(ValueError, match="shorter"):
        unpack_call(call, [])


def test_a_head_keeps_types_and_bits():
    rows = {"frames": [{"score": np.array([0.1, np.nan], dtype=np.float32), "device": "d"}]}
    facts, unpacked = unpack_head(pack_head((("a", 1), rows)))
    assert facts == ("a", 1)
    (chunk,) = unpacked["frames"]
    assert chunk["score"].dtype == np.float32
    assert chunk["score"].tobytes() == rows["frames"][0]["score"].tobytes()


def test_a_failure_is_a_head():
    failure = unpack_head(pack_head(Failure(RunError("no frames"), "trace")))
    assert isinstance(failure, Failure)
    assert str(failure.error) == "no frames"


def local_class() -> type:
    @dataclass
    class Local:
        score: int

    return Local


def class_of_a_script() -> type:
    names = {"__name__": "__main__"}
    exec("class OfScript:\n    def __init__(self, score): self.score = score", names)
    sys.modules["__main__"].OfScript = names["OfScript"]
    return names["OfScript"]


@pytest.mark.slow
@pytest.mark.parametrize("make", [local_class, class_of_a_script])
def test_a_class_that_the_other_process_cannot_import_travels(make, monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "OfScript", None, raising=False)  # removed after the test
    head = pack_head((make()(17), {}))
    other = subprocess.run([sys.executable, "-c", UNPACK], input=head, capture_output=True, check=True)
    assert other.stdout.split() == [b"17"]
