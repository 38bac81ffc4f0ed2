"""Test devices and their server with faults and random requests; print each violation and a JSON line.

`python -m benchmarks.field faults` kills server and device and cuts their network while a device plays its stream. The
device must go on predicting and end on one of the server's versions, and no acknowledged upload may be lost.
`python -m benchmarks.field fuzz` draws requests from the server's description, mutates binary bodies, and mixes bombs,
endless heads, floods and stolen tokens into them. Each request must be served or refused, memory may not grow, and no
acknowledged upload of another device may be lost; `schema` lets schemathesis draw the requests instead.
`python -m benchmarks.field hostile` plays devices with a server whose replies are changed; `abuse` is the reverse.
`python -m benchmarks.field power` cuts the power of a recorded server and a recorded device, and kills the device.
`python -m benchmarks.field paired` plays settings in the field and in the lab: their figures must agree.
The exit code is 1 after a violation.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks.field.abuse import ABUSES, run_abuses
from benchmarks.field.device_power import run_device_cuts
from benchmarks.field.faults import KINDS, Disturbed
from benchmarks.field.fuzz import run_fuzzing
from benchmarks.field.hostile import run_hostile_servers
from benchmarks.field.paired import SYSTEMS, compare_systems
from benchmarks.field.power import run_power_cuts
from benchmarks.field.processes import RayServerProcess, ServerProcess


def faults(options: argparse.Namespace, count: int) -> tuple[dict[str, object], list[str]]:
    """Disturb sessions one after another until `count` faults; return the totals and the violations."""
    fallen: Counter[str] = Counter()
    broken: list[str] = []
    sessions = 0
    with tempfile.TemporaryDirectory(prefix="driftlab-field-", ignore_cleanup_errors=True) as place:
        os.environ["DRIFTLAB_CACHE"] = f"{place}/networks"
        server = RayServerProcess(Path(place)) if options.ray else ServerProcess(Path(place))
        try:
            while fallen.total() < count:
                folder = Path(place) / f"session-{sessions}"
                folder.mkdir()
                one = Disturbed(
                    folder, server, random.Random(f"{options.seed}/{sessions}"), options.seconds, options.kinds
                )
                found = one.run(min(options.per_session, count - fallen.total()))
                fallen.update(kind.split()[0] for kind in one.done)
                broken += [f"session {sessions} after {', '.join(one.done)}: {fault}" for fault in found]
                text = f"session {sessions}, load {os.getloadavg()[0]:.0f}: {', '.join(one.done)}"
                print(f"{text}: {'; '.join(found) or 'holds'}", flush=True)
                sessions += 1
        finally:
            server.stop()
    return {
        "benchmark": "field-faults",
        "seed": options.seed,
        "ray": options.ray,
        "sessions": sessions,
        "faults": dict(fallen),
    }, broken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("campaign", choices=("faults", "fuzz", "schema", "paired", "power", "abuse", "hostile"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, help="faults, requests, hostile replies or power cuts")
    parser.add_argument("--seconds", type=float, default=90.0, help="length of a disturbed stream, or of an abuse")
    parser.add_argument("--per-session", type=int, default=6, help="most faults of one stream")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="kinds of faults")
    parser.add_argument("--abuses", nargs="+", choices=ABUSES, default=[*ABUSES])
    parser.add_argument("--ray", action="store_true", help="on Ray Serve, whose replica and learners are killed too")
    parser.add_argument("--systems", nargs="+", default=SYSTEMS, help="systems of `paired`")
    options = parser.parse_args()
    if options.campaign == "faults":
        totals, broken = faults(options, options.count or 50)
    elif options.campaign == "power":
        cuts = options.count or 200
        totals, broken = run_power_cuts(options.seed, cuts)
        of_device, lost = run_device_cuts(options.seed, cuts, kills=cuts)
        totals, broken = totals | of_device, broken + lost
    elif options.campaign == "abuse":
        totals, broken = run_abuses(options.seconds, options.abuses)
    elif options.campaign == "hostile":
        totals, broken = run_hostile_servers(options.seed, options.count or 0)
    elif options.campaign == "paired":
        totals, broken = compare_systems(options.seed, options.seconds, options.systems)
    else:
        totals, broken = run_fuzzing(options.seed, options.count or 5000, by_schema=options.campaign == "schema")
    for fault in broken:
        print(fault)
    print(json.dumps({**totals, "broken": len(broken)}))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
