"""Compare rules that choose among the networks of a run on drawn loads.

The benchmark prints a JSON line per family and rule. `RUN` is the folder of a run whose table `variants` has the
networks, such as one of adascale-loads; without it the networks are invented. Sessions are replayed without networks
(`scaling/replay.py`). Each line has means over loads and seeds, and the 95 % intervals over seeds of the differences
from AdaScale's rule (`own`), that of Once-for-all (`prefer`) and two bounds on the same networks. `+exits` are rules
whose frames leave a path where the next stage would be late; `@10Hz` rules have ten readings per second in place of
two. `per frame` chooses at each capture, `per stage` also at each exit of the frame.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from _shared import options_of, report

from driftlab.platform.core.records import Variant
from driftlab.platform.results import stats
from driftlab.platform.results.tables.read import Tables, open_run
from driftlab.platform.scaling import choosers
from driftlab.platform.scaling.adascale import AdaScale
from driftlab.platform.scaling.replay import LoadSession, RuleOutcome, best_per_frame, replay, replay_per_frame
from driftlab.platform.world import load

LOADS = ({"preset": "user"}, {"preset": "random"}, {"preset": "cold_start"}, {"preset": "user", "noise": 0.1})
RULES = ("own", "prefer", "fastest", "clairvoyant", "expected")
PER_FRAME = ("per frame", "per stage")
ORACLE = "oracle per frame"
REFERENCES = ("own", "prefer", "clairvoyant", ORACLE)
INVENTED = tuple(
    Variant(".".join(["base"] * stage), accuracy, 10_000 * stage, 0.08 * stage, 0.01 * stage, test_accuracy=accuracy)
    for stage, accuracy in enumerate((0.6, 0.7, 0.76, 0.8), 1)
)


def families(folder: Path | None) -> Iterator[tuple[str, list[Variant]]]:
    """Yield the networks of each family of a run; without a run, invented ones."""
    if folder is None:
        yield "invented", list(INVENTED)
        return
    tables = Tables(open_run(folder))
    rows = tables.frame("variants").merge(tables.frame("runs")[["cell", "scaling", "workload"]], on="cell")
    for (scaling, workload), own in rows.groupby(["scaling", "workload"]):
        one = own[own["cell"] == own["cell"].min()].sort_values("variant")
        if len(one) > 1:
            yield f"{scaling} on {workload}", [
                Variant(row.network, row.val_accuracy, row.memory_bytes, row.latency_ms / 1e3, row.energy_j,
                        test_accuracy=row.accuracy)
                for row in one.itertuples()
            ]  # fmt: skip


def outcome(rule: str, networks: list[Variant], session: LoadSession) -> RuleOutcome:
    if rule == ORACLE:
        return best_per_frame(networks, session)
    if rule in PER_FRAME:
        return replay_per_frame(networks, session, revises=rule == PER_FRAME[1])
    name, _, hz = rule.partition("@")
    name, plus, _ = name.partition("+")
    if hz:
        session = replace(session, load=replace(session.load, sense_hz=10.0))
    chosen = AdaScale(chooser=name)  # type: ignore[arg-type]
    return replay(
        partial(choosers.select, chosen), networks, session, leaves=bool(plus), foresees=chosen.uses_true_load
    )


def measure(
    networks: list[Variant], rule: str, goal_s: float, seeds: int, duration_s: float = 60.0
) -> dict[str, np.ndarray]:
    """Return each measure by seed, as means over the loads."""
    found = []
    for seed in range(seeds):
        rngs = [np.random.default_rng([seed, number]) for number in range(len(LOADS))]
        drawn = [load.draw(load.from_mapping(one), duration_s + 2, rng) for one, rng in zip(LOADS, rngs, strict=True)]
        own = [
            outcome(rule, networks, LoadSession(one, goal_s, duration_s=duration_s)) for one in drawn if one is not None
        ]
        found.append([[one.right, one.late, one.accuracy] for one in own])
    return dict(zip(("right", "late", "accuracy"), 100 * np.array(found).mean(axis=1).T, strict=True))


def _interval(values: np.ndarray) -> list[float]:
    """Return the ends of the 95 % interval of a mean."""
    found = stats.mean(values.tolist())
    assert found is not None, "there are no seeds"
    return [round(float(found.low), 2), round(float(found.high), 2)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--goal", type=float, default=0.37, help="deadline in seconds")
    parser.add_argument("--seconds", type=float, default=60.0, help="duration of a session")
    options = options_of(parser, seeds=2, seconds=4.0)
    for family, networks in families(options.run):
        exits = any("." in one.name for one in networks)
        leaving = ("prefer+exits", "expected+exits", "prefer+exits@10Hz") if exits else ()
        rules = [*RULES, "own@10Hz", "expected@10Hz", *leaving, *(PER_FRAME if exits else PER_FRAME[:1]), ORACLE]
        found = {rule: measure(networks, rule, options.goal, options.seeds, options.seconds) for rule in rules}
        for rule, own in found.items():
            line = {name: round(float(values.mean()), 2) for name, values in own.items()}
            differences = {
                other: {name: _interval(own[name] - found[other][name]) for name in own}
                for other in REFERENCES if other != rule
            }  # fmt: skip
            report({"benchmark": "choosers", "family": family, "rule": rule, **line, "against": differences})


if __name__ == "__main__":
    main()
