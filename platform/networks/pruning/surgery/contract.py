"""Rules for products of tensors: matrix products, einsum and attention."""

from __future__ import annotations

import string

from torch import Tensor

from driftlab.platform.networks.pruning.surgery.rules import Lost, TorchCall, along, compact, follows, spread, varying

Term = tuple[Tensor, str]  # a factor, and one letter per dimension
SUMS = "sums over channels, which fewer channels would change"


def matrix_product(call: TorchCall) -> list[Tensor]:
    """Multiply matrices.

    A weight reads channels along the summed dimension and makes channels along the other.
    """
    left, right = (call.given(0, "input"), call.given(1, "other")) if len(call.args) < 2 else call.args[:2]
    if call.name == "rmatmul":
        left, right = right, left
    batch = string.ascii_uppercase[: max(left.dim(), right.dim(), 2) - 2]
    before = batch[len(batch) - max(0, left.dim() - 2) :] + ("k" if left.dim() == 1 else "ik")
    after = batch[len(batch) - max(0, right.dim() - 2) :] + ("k" if right.dim() == 1 else "kj")
    out = batch + ("i" if left.dim() > 1 else "") + ("j" if right.dim() > 1 else "")
    return _multiply(call, [(left, before), (right, after)], out)


def einsum(call: TorchCall) -> list[Tensor]:
    """Multiply factors by the letters of an equation."""
    equation, *factors = call.args
    if len(factors) == 1 and not isinstance(factors[0], Tensor):
        factors = list(factors[0])
    if not isinstance(equation, str):
        raise Lost("calls einsum without an equation")
    inputs, arrow, out = equation.replace(" ", "").partition("->")
    letters = inputs.split(",")
    if len(letters) != len(factors) or "." in equation or any(len(set(each)) < len(each) for each in letters):
        raise Lost(f"calls einsum with '{equation}', through which channels cannot be followed")
    if not arrow:
        out = "".join(sorted(letter for letter in set(inputs) - {","} if inputs.count(letter) == 1))
    return _multiply(call, list(zip(factors, letters, strict=True)), out)


def attend(call: TorchCall) -> list[Tensor]:
    """Apply attention, whose queries and keys are fixed.

    Its weights are sums over all channels of queries and keys.
    """
    query, key, value = (call.given(place, name) for place, name in enumerate(("query", "key", "value")))
    summed = call.trace.pin(f"{call.trace.layer} {SUMS}")
    for tensor in filter(follows, (query, key)):
        call.trace.unite(compact(tensor.labels), summed)
    if not follows(value):
        raise Lost("attends to values that it does not compute")
    return [spread(along(value.labels, -1), call.made[0].dim() - 1, call.made[0].shape)]


def _multiply(call: TorchCall, terms: list[Term], out: str) -> list[Tensor]:
    """Return labels along the one letter of the product with channels: of a factor, or made by a weight."""
    by_letter = _labels_by_letter(terms)
    made = _bind_weights(call, terms, out, by_letter)
    if set(by_letter) - set(out) - made.keys():
        raise Lost(SUMS)
    lines = {letter: found[0] for letter, found in by_letter.items() if letter in out}
    for letter, labels in lines.items():
        for others in by_letter[letter][1:]:
            call.trace.unite(labels, others)
        for tensor, letters in terms:
            if not follows(tensor) and letter in letters and tensor.shape[letters.index(letter)] > 1:
                call.trace.bind(tensor, letters.index(letter), labels)
    lines |= {letter: labels for letter, labels in made.items() if letter in out}
    if len(lines) > 1:
        raise Lost("spreads its channels over more than one dimension")
    shape = call.made[0].shape
    for letter, labels in lines.items():
        return [spread(labels, out.index(letter), shape)]
    return [(call.trace.fresh(1) if made else call.main.labels.reshape(-1))[0].expand(shape)]


def _labels_by_letter(terms: list[Term]) -> dict[str, list[Tensor]]:
    """Return the labels of the factors along each letter."""
    by_letter: dict[str, list[Tensor]] = {}
    for tensor, letters in terms:
        if follows(tensor):
            for dim in varying(tensor.labels):
                by_letter.setdefault(letters[dim], []).append(along(tensor.labels, dim))
    return by_letter


def _bind_weights(
    call: TorchCall, terms: list[Term], out: str, by_letter: dict[str, list[Tensor]]
) -> dict[str, Tensor]:
    """Record that weights read channels along summed letters; return the letters read, and the one made."""
    done: dict[str, Tensor] = {}
    followed = [(tensor, letters) for tensor, letters in terms if follows(tensor)]
    theirs = {letter for _, letters in followed for letter in letters}
    for tensor, letters in terms:
        summed = [letter for letter in letters if letter not in out and letter in theirs]
        if follows(tensor) or not summed:
            continue
        sources = [(source, others) for source, others in followed if set(summed) & set(others)]
        channels = [others[dim] for source, others in sources for dim in varying(source.labels)]
        if done or len(sources) > 1 or len(channels) > 1:
            raise Lost(SUMS)
        if channels and channels[0] not in summed:
            continue  # it mixes places, so that channels stay apart
        for letter in channels:
            call.trace.read(tensor, letters.index(letter), by_letter[letter][0])
            done[letter] = by_letter[letter][0]
        new = [letter for letter in letters if letter in out and letter not in theirs]
        if len(new) > 1:
            raise Lost("makes channels along more than one dimension")
        done |= {letter: call.trace.make(tensor, letters.index(letter)) for letter in new}
    return done


RULES = {
    **dict.fromkeys(("matmul", "rmatmul", "mm", "bmm", "mv"), matrix_product),
    "einsum": einsum,
    "scaled_dot_product_attention": attend,
}
