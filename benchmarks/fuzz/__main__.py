"""Run random command lines, valid and invalid, and print each result that violates a rule.

The rules: no traceback, no result later than 10 s, exit code 2 and one message for an invalid request, 1 and a reason
for a failed run. `--only N` repeats request N. The last line is JSON; the exit code is 1 after a violation.

Most requests run in this process, where nothing has to be imported; each fiftieth runs in a child process. Time in
which a command waited for a processor does not count towards the limit.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks.fuzz.commands import COMMAND_LIMIT_S, CommandResult, run_request
from benchmarks.fuzz.foreign import foreign_server
from benchmarks.fuzz.grammar import TINY, Request, World, request
from benchmarks.fuzz.videos import write_video
from driftlab.platform.lab.seal import run

RUN_EVERY = 3  # one of three valid small runs is executed, as this takes longest
PROCESS_EVERY = 50  # one of fifty requests runs in a child process
SHOWN = 1500  # characters of a result


def campaign(
    seed: int, numbers: range, folder: Path, every: int = PROCESS_EVERY
) -> Iterator[tuple[int, Request, CommandResult]]:
    """Run the requests of a seed with these numbers; a request depends only on seed and number."""
    (folder / "finished").mkdir(parents=True)
    finished = run(TINY, out=folder / "finished" / "run").directory
    video = write_video(folder / "video.mp4")
    with foreign_server() as port:
        for number in numbers:
            dice = random.Random(f"{seed}/{number}")
            with tempfile.TemporaryDirectory(dir=folder) as place:
                drawn = request(dice, World(Path(place), finished, video, port))
                alone, run_it = every > 0 and number % every == every - 1, number % RUN_EVERY == 0
                for result in run_request(drawn, Path(place), process=alone, run=run_it):
                    yield number, drawn, result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", type=int)
    parser.add_argument("--keep", action="store_true", help="print every result")
    options = parser.parse_args()
    last = options.first + options.count
    numbers = range(options.first, last) if options.only is None else range(options.only, options.only + 1)
    codes: Counter[str] = Counter()
    broken, slowest_s, own_s = 0, 0.0, 0.0
    with tempfile.TemporaryDirectory(prefix="driftlab-fuzz-") as folder:
        os.environ["DRIFTLAB_CACHE"] = f"{folder}/networks"
        for number, _, result in campaign(options.seed, numbers, Path(folder)):
            faults = list(result.faults())
            if number % 100 == 0:
                print(f"{number - numbers.start} requests, {broken} broken", file=sys.stderr, flush=True)
            codes[str(result.code)] += 1
            broken += bool(faults)
            if not result.ran:
                slowest_s, own_s = max(slowest_s, result.took_s), max(own_s, result.busy_s)
            if faults or options.keep or options.only is not None or (result.code == 1 and "FAILED" in result.output):
                print(
                    f"{number}: {'; '.join(faults) or 'kept'}: {result.words}".encode("ascii", "replace").decode()[
                        :SHOWN
                    ]
                )
                text = result.error[-SHOWN:] + result.output[-SHOWN:]
                print(
                    f"    {result.code} in {result.took_s:.1f} s\n{text}".encode("ascii", "replace").decode(),
                    flush=True,
                )
    line = {"benchmark": "fuzz", "seed": options.seed, "requests": len(numbers), "codes": dict(codes), "broken": broken}
    slowest = {"slowest_s": round(slowest_s, 2), "slowest_own_s": round(own_s, 2)}
    print(json.dumps({**line, **slowest, "limit_s": COMMAND_LIMIT_S}))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
