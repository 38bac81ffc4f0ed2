"""A plain PyTorch class as a member: `class Mine` with `adapt(self, model, frames)`.

The arguments of its constructor, with their defaults, are the parameters. `frames` are inputs of the network; `adapt`
changes the model in place and may return the outputs by which the frames are predicted. The attributes of the object
are the member's state. Passes through the model are counted, and other settings of it are restored.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import io
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

from driftlab.errors import RequestError
from driftlab.platform.adaptation.base import EMPTY_PACK, Adapted, Batch, Phase
from driftlab.platform.adaptation.batches import NO_FRAMES, PredictOn, device_inputs
from driftlab.platform.adaptation.learn import StreamAdaptation
from driftlab.platform.core import plugins
from driftlab.platform.core.records import LEARNING_FAILED, Passes, Weights

if TYPE_CHECKING:
    from torch import nn

plugins.install_finder()  # before a worker unpickles a user's class


@dataclass(frozen=True, eq=False)
class PlainMemory:
    """The state: the source network, and the user's object without the network, pickled."""

    digest_name: ClassVar[str] = "PlainMemory"

    source: Weights
    kept: bytes

    @property
    def kept_bytes(self) -> int:
        """Count the bytes of the source's copy, of the copy before the update, and of the object."""
        return sum(2 * value.nbytes for value in self.source.values()) + len(self.kept)


@dataclass(frozen=True)
class PlainAdaptation(StreamAdaptation):
    """Base of members that stand for a plain class."""

    predict_on: PredictOn = "batch"

    only_on_stream, made_of = True, cast("type[Any]", object)  # the user's class

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the user's class and its arguments, from which the member's class is built again."""
        return _member_of, (self.made_of, {one.name: getattr(self, one.name) for one in dataclasses.fields(self)})

    def prepare(self, model: nn.Module, pack: Weights = EMPTY_PACK, *, go_on: Any = None) -> Any:
        """Copy the network, and make the object; that of another network does not apply."""
        from driftlab.platform.networks.predict import state_of

        model.eval()
        given = {name: getattr(self, name) for name in arguments_of(self.made_of)}
        return PlainMemory(state_of(model), _packed(self.made_of(**given), model))

    def reset(self, model: nn.Module, state: Any) -> Any:
        from driftlab.platform.networks.module_utils import restore_entries

        restore_entries(model, state.source)
        return self.prepare(model)

    def adapt(self, model: nn.Module, state: Any, batch: Batch, phase: Phase) -> Adapted:
        """Call the object once with all frames; numbers that are not finite are undone."""
        import numpy as np
        import torch

        from driftlab.platform.networks import vector
        from driftlab.platform.networks.module_utils import copy_entries, is_finite, restore_entries

        if not len(batch.images) or phase.iterations == 0:
            return Adapted(state, skipped=NO_FRAMES, passes=Passes())
        model.eval()
        before, weights = copy_entries(model, state.source), vector.read(model)
        mine = _unpacked(state.kept, model)
        with _counted(model) as passes, torch.random.fork_rng(devices=()):
            torch.default_generator.manual_seed(int(batch.rng.integers(2**62)))
            outputs = mine.adapt(model, device_inputs(model, batch, np.arange(len(batch.images))))
        after = PlainMemory(state.source, _packed(mine, model))
        work = dataclasses.replace(passes[0], kept_bytes=after.kept_bytes)
        if not is_finite(model, state.source):
            restore_entries(model, before)
            return Adapted(state, skipped=f"{LEARNING_FAILED}: it left numbers that are not finite", passes=work)
        predictions = None
        if outputs is not None and self.predict_on == "batch":
            predictions = batch.task.predictions(outputs.detach(), *batch.images.shape[1:3])
        changed = vector.read(model) != weights
        return Adapted(after, 1, changed=changed if changed.any() else None, passes=work, predictions=predictions)


@functools.cache
def adopt(cls: Any) -> Any:
    """Return the class of members that stand for a plain class; another class is returned as it is."""
    verb, fields = inspect.getattr_static(cls, "adapt", None), []
    if not inspect.isfunction(verb) or len(inspect.signature(verb).parameters) != len(("self", "model", "frames")):
        return cls
    for name, one in arguments_of(cls).items():
        if one.default is inspect.Parameter.empty:
            raise RequestError(f"every argument of the constructor of {cls.__name__} needs a default: {name}")
        hint = type(one.default) if one.annotation is inspect.Parameter.empty else one.annotation
        fields.append((name, hint, dataclasses.field(default=one.default)))
    names = {"made_of": cls, "__doc__": cls.__doc__, "__module__": cls.__module__}
    return dataclasses.make_dataclass(cls.__name__, fields, bases=(PlainAdaptation,), namespace=names, frozen=True)


def arguments_of(cls: type[Any]) -> dict[str, inspect.Parameter]:
    """List the arguments of a class's constructor."""
    return dict(inspect.signature(cls, eval_str=True).parameters)


def _member_of(cls: Any, values: dict[str, Any]) -> Any:
    return adopt(cls)(**values)


def _packed(mine: Any, model: nn.Module) -> bytes:
    """Pickle an object; the network and its parameters and buffers stand in it by their names."""
    import torch

    names = {id(part): name for name, part in _parts_of(model).items()}

    class Packer(pickle.Pickler):
        def persistent_id(self, value: Any) -> str | None:
            return names.get(id(value))

        def reducer_override(self, value: Any) -> Any:
            """Store plain numbers: torch's own form of a tensor holds addresses."""
            if not isinstance(value, torch.Tensor):
                return NotImplemented
            return _tensor, (value.detach().cpu().numpy(), str(value.device), value.requires_grad)

    Packer(file := io.BytesIO()).dump(mine)
    return file.getvalue()


def _unpacked(kept: bytes, model: nn.Module) -> Any:
    class Unpacker(pickle.Unpickler):
        def persistent_load(self, name: Any) -> Any:
            return parts[name]

    parts = _parts_of(model)
    return Unpacker(io.BytesIO(kept)).load()


def _parts_of(model: nn.Module) -> dict[str, Any]:
    """List a network, its modules, parameters and buffers by unique names."""
    modules = {f"module/{name}": part for name, part in model.named_modules()}
    return {**modules, **dict(model.named_parameters()), **dict(model.named_buffers())}


def _tensor(values: Any, device: str, requires_grad: bool) -> Any:
    import torch

    return torch.tensor(values, device=device, requires_grad=requires_grad)


@contextmanager
def _counted(model: nn.Module) -> Iterator[list[Passes]]:
    """Count passes through a model, and which modules had gradients; put modes, gradients and hooks back."""
    from driftlab.platform.networks.module_utils import batch_norms, record_layers

    forward, backward, learned, result = list[int](), list[int](), set[str](), list[Passes]()
    parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
    norms = {norm: (norm.momentum, norm.track_running_stats) for norm in batch_norms(model).values()}

    def count(_: nn.Module, given: tuple[Any, ...], outputs: Any) -> None:
        frames = len(given[0])
        forward.append(frames)
        if outputs.requires_grad:
            outputs.register_hook(lambda _: backward.append(frames))

    handles = [model.register_forward_hook(count)]
    for name, value in parameters.items():
        owner = name.rpartition(".")[0]
        handles.append(value.register_post_accumulate_grad_hook(lambda _, owner=owner: learned.add(owner)))
    try:
        with record_layers(model) as ran:
            yield result
        trained = tuple(name for name in ran if name in learned) if learned else None
        result.append(Passes(tuple(forward), tuple(backward), trained if backward else ()))
    finally:
        for handle in handles:
            handle.remove()
        for value in parameters.values():
            value.requires_grad_(True)
            value.grad = None
        for norm, (momentum, tracks) in norms.items():
            norm.momentum, norm.track_running_stats = momentum, tracks
        model.eval()
