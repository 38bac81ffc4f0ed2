"""The state of a network: vector, buffers, and the digest of both and of the adaptation's state."""

from __future__ import annotations

import copy
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from driftlab.errors import RequestError, RunError
from driftlab.platform.networks import state, vector
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.state import NO_BUFFERS, Buffers, State, canonical_bytes, digest_of


class Shared(nn.Module):
    """A network with a batch norm under two names, a shared buffer, and a non-persistent buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.again = self.norm
        self.one, self.two = nn.Module(), nn.Module()
        self.one.register_buffer("seen", torch.tensor([1, 2], dtype=torch.int32))
        self.two.register_buffer("seen", self.one.seen.view(2))  # another tensor, the same storage
        self.register_buffer("scratch", torch.zeros(9), persistent=False)
        self.register_buffer("empty", torch.zeros(0))


@dataclass(frozen=True)
class Memory:
    steps: int
    moments: tuple[Any, ...]
    notes: dict[str, Any]


def memory(**changed: Any) -> Memory:
    given = {"steps": 3, "moments": (np.arange(3, dtype=np.float32), torch.zeros(2)), "notes": {"a": 1, "b": None}}
    return Memory(**{**given, **changed})


def stirred(model: nn.Module) -> nn.Module:
    """Return the model with changed buffers, as after training."""
    model.train()
    model(torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    return model.eval()


class TestBuffers:
    def test_read_returns_the_written_bits(self):
        learned, other = stirred(build("half", 8, seed=0)), build("half", 8, seed=1).eval()
        held = state.read(learned)
        for array in (held.vector, *held.buffers.arrays):
            array.flags.writeable = False  # as arrays from shared memory are
        assert state.changed_buffers(state.read_buffers(other), held.buffers)
        state.write(other, held)
        again = state.read(other)
        assert again.vector.tobytes() == held.vector.tobytes()
        assert state.changed_buffers(again.buffers, held.buffers) == ()
        assert [array.dtype for array in again.buffers.arrays] == [array.dtype for array in held.buffers.arrays]
        images = torch.randn(2, 3, 32, 32)
        assert torch.equal(learned(images), other(images))

    def test_those_of_another_network_are_refused_before_anything_is_written(self):
        model, other = build("half", 8, seed=0), state.read(build("tiny", 8, seed=0))
        before = vector.read(model).tobytes()
        with pytest.raises(RequestError, match="do not belong"):
            state.write(model, other)
        assert vector.read(model).tobytes() == before

    def test_a_type_that_arrays_do_not_have_is_refused(self):
        model = nn.Module()
        model.register_buffer("scale", torch.zeros(2, dtype=torch.bfloat16))
        with pytest.raises(RequestError, match="'scale' is bfloat16"):
            state.read_buffers(model)

    def test_those_that_moved_are_found_by_their_bits(self):
        before = state.read_buffers(Shared())
        model = Shared()
        with torch.no_grad():
            model.norm.running_mean[1] = -0.0
            model.two.seen[0] = 5
        after = state.read_buffers(model)
        assert [after.layout.names[place] for place in state.changed_buffers(before, after)] == [
            "norm.running_mean",
            "one.seen",
        ]
        assert state.changed_buffers(before, before) == ()
        assert len(state.changed_buffers(NO_BUFFERS, after)) == 5


class TestDigest:
    def test_bare_weights_have_the_digest_of_their_bytes(self):
        held = state.read(build("half", 8, seed=0))
        wanted = hashlib.sha256(held.vector.tobytes()).hexdigest()[:16]
        for nothing in (None, (), [], {}):
            assert digest_of(held, held.buffers, nothing) == wanted

    def test_weights_buffers_and_memory_each_move_it(self):
        model = build("half", 8, seed=0)
        held = state.read(model)
        weights = State(held.vector + np.float32(1), held.buffers)
        buffers = State(held.vector, state.read_buffers(stirred(model)))
        digests = [
            digest_of(held, held.buffers),
            digest_of(weights, held.buffers),
            digest_of(buffers, held.buffers),
            digest_of(held, held.buffers, memory()),
            digest_of(held, held.buffers, memory(steps=4)),
            digest_of(held, NO_BUFFERS),
        ]
        assert len(set(digests)) == len(digests)

    def test_every_single_buffer_moves_it(self):
        held = state.read(build("half", 8, seed=0))
        digests = {digest_of(held, held.buffers)}
        for place in range(len(held.buffers.arrays)):
            arrays = [array.copy() for array in held.buffers.arrays]
            arrays[place].reshape(-1).view(np.uint8)[0] ^= 1
            digests.add(digest_of(State(held.vector, Buffers(held.buffers.layout, tuple(arrays))), held.buffers))
        assert len(digests) == 1 + len(held.buffers.arrays) > 10


@dataclass(frozen=True)
class Memory2:
    steps: int
    moments: tuple[Any, ...]
    notes: dict[str, Any]


DIFFERENT: list[Any] = [
    None, False, 0, 0.0, -0.0, "", b"", (), [], {}, "0", b"0", [0], (0,), [[0]], [0, 0], {0: 0}, {"0": 0}, [None],
    ["ab", "c"], ["a", "bc"], {"a": "bc"}, {"ab": "c"}, float("nan"), float("inf"), 1 << 80, -1,
    np.float32(0), np.float64(0), np.int64(0), np.zeros(()), np.zeros(1), np.zeros((1, 1)), np.zeros(2, np.float32),
    np.zeros(1, np.int64), np.zeros(1, ">f8"), np.array([-0.0]), np.array(["a"]), torch.zeros(1), torch.zeros(1, 1),
    torch.zeros(()), torch.zeros(1, dtype=torch.bfloat16), torch.tensor([-0.0]), torch.tensor([True]),
    np.zeros(1, [("a", "<f4")]), np.zeros(1, [("b", "<f4")]),
    ["a", "str"], ["astr", ""],
    memory(), memory(steps=4), memory(moments=(np.arange(3, dtype=np.float32), torch.ones(2))), memory(notes={}),
    memory(steps=3.0), Memory2(**vars(memory())),
]  # fmt: skip


class TestCanonicalBytes:
    def test_types_names_shapes_and_bits_tell_values_apart(self):
        written = [canonical_bytes(value) for value in DIFFERENT]
        for number, one in enumerate(written):
            assert written.index(one) == number, (DIFFERENT[number], DIFFERENT[written.index(one)])

    def test_a_copy_and_another_order_are_the_same(self):
        assert [canonical_bytes(copy.deepcopy(value)) for value in DIFFERENT] == list(map(canonical_bytes, DIFFERENT))
        assert canonical_bytes({"a": 1, "b": (2,)}) == canonical_bytes({"b": (2,), "a": 1})
        assert canonical_bytes(np.arange(6).reshape(2, 3).T) == canonical_bytes(np.arange(6).reshape(2, 3).T.copy())
        assert canonical_bytes(torch.arange(6).view(2, 3).T) == canonical_bytes(torch.arange(6).view(2, 3).T.clone())

    @pytest.mark.slow
    def test_another_process_writes_the_same(self):
        code = (
            "import hashlib, sys, numpy as np, torch; from dataclasses import make_dataclass\n"
            "from driftlab.platform.networks.state import canonical_bytes\n"
            "Memory = make_dataclass('Memory', ['steps', 'moments', 'notes'])\n"
            "value = Memory(3, (np.arange(3, dtype=np.float32), torch.zeros(2)), {'b': None, 'a': 1})\n"
            "print(hashlib.sha256(canonical_bytes(value)).hexdigest())"
        )
        env = {**os.environ, "PYTHONHASHSEED": "7"}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
        assert done.stdout.strip() == hashlib.sha256(canonical_bytes(memory())).hexdigest()

    @pytest.mark.parametrize(
        ("make", "place"),
        [
            (lambda: memory(notes={"rng": np.random.default_rng(0)}), r"state\.notes\['rng'\] is a Generator"),
            (lambda: [1, {2}], r"state\[1\] is a set"),
            (lambda: (nn.ReLU(),), r"state\[0\] is a ReLU"),
            (lambda: np.array([object()]), "state is a ndarray"),
            (lambda: Memory, "state is a type"),
        ],
    )
    def test_a_type_that_it_cannot_write_is_named(self, make: Callable[[], Any], place):
        with pytest.raises(RunError, match=place):
            canonical_bytes(make())
