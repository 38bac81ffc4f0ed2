"""Measure switching between nested networks against loading independent ones; prints one JSON line.

Both have the same five widths, of a classifier of 370 k parameters. Bytes are those that a switch loads into memory,
averaged over all ordered pairs; `ratio` is nested over independent. Loading reads them from a cached file:
for nested networks the next part of one vector, and nothing for a smaller network; for independent ones everything.
Building the network from memory is the same work for both and counted separately. Times are medians over the pairs.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from _shared import options_of, report, seconds
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from driftlab.datasets.labelled import open_set
from driftlab.platform.core.records import Variant
from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.pruning.family import Family, extract
from driftlab.platform.networks.training.training_loop import convert_set
from driftlab.platform.scaling.independent import Independent
from driftlab.platform.scaling.nested import Nested
from driftlab.platform.world.measured import paged_bytes

NETWORK, CLASSES = "wide_classifier", 10

Pairs = Sequence[tuple[int, int]]


def families() -> tuple[Family, Family]:
    """Build both families without training: their sizes do not depend on their weights."""
    data = convert_set(open_set("signs/vc", counts=(40, 20, 20)))
    model = build(NETWORK, CLASSES, seed=0).eval()
    nested = Nested(ranking="l1", accuracy_loss=1.0, prune_epochs=0, grow_epochs=0)
    return nested.build(model, data), Independent(epochs=0).build(model, data)


def moved_bytes(family: Family, pairs: Pairs) -> float:
    """Average the bytes loaded into memory."""
    networks = [Variant(str(which), None, family.memory_bytes(which), 1.0) for which in range(len(family))]
    return statistics.mean(paged_bytes(networks, *pair, nested=family.nested)[0] for pair in pairs)


def read_slice(file: Path, ends: Sequence[int], before: int, after: int) -> None:
    """Read the part that the larger network adds."""
    if after > before:
        with safe_open(file, framework="np") as kept:
            kept.get_slice("shared")[ends[before] : ends[after]]


def median_ms(switch: Callable[[int, int], object], pairs: Pairs, repeats: int) -> float:
    return 1e3 * statistics.median(seconds(partial(switch, *pair)) for pair in [*pairs] * repeats)


def measure(repeats: int) -> dict[str, object]:
    nested, alone = families()
    every = list(itertools.permutations(range(len(nested)), 2))
    up, down = [pair for pair in every if pair[1] > pair[0]], [pair for pair in every if pair[1] < pair[0]]
    with tempfile.TemporaryDirectory() as folder:
        together = Path(folder, "nested.safetensors")
        save_file({"shared": nested.shared}, together)
        for which, private in enumerate(alone.private):
            save_file(dict(private), Path(folder, f"{which}.safetensors"))
        slice_of = partial(read_slice, together, nested.ends())
        into = {"nested": moved_bytes(nested, every), "independent": moved_bytes(alone, every)}
        return {
            "benchmark": "switching",
            "ratio": round(into["nested"] / into["independent"], 3),
            "bytes_in": {name: round(count) for name, count in into.items()},
            "kept_bytes": {
                "nested": nested.memory_bytes(len(nested) - 1),
                "independent": sum(map(alone.memory_bytes, range(len(alone)))),
            },
            "load_ms": {
                "nested_up": round(median_ms(slice_of, up, repeats), 3),
                "nested_down": round(median_ms(slice_of, down, repeats), 3),
                "independent": round(
                    median_ms(lambda _, after: load_file(Path(folder, f"{after}.safetensors")), every, repeats), 3
                ),
            },
            "make_ms": {
                "nested": round(median_ms(lambda _, after: extract(nested, after), every, repeats), 2),
                "independent": round(median_ms(lambda _, after: extract(alone, after), every, repeats), 2),
            },
        }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=10)
    options = options_of(parser, repeats=1)
    report(measure(options.repeats))
