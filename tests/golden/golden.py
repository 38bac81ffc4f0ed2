"""Show whether a change of the code changes anything that driftlab produces.

Both trees run the same short experiments on this machine with the same packages, so nothing is stored in the repository
but the experiments: figures of two processors may differ in their last bits, those of two trees may not.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import pyarrow.parquet as pq
from golden_compare import Renames, compare, read_renames
from golden_record import HERE, RecordError, record

ROOT = HERE.parents[1]
RENAMES = HERE / "renames.yaml"
KEPT = ROOT / "out" / "golden"  # recordings; git ignores the folder
FAMILIES = ("streaming", "adaptation", "scaling", "scheduling")  # as tables and `driftlab list` call them
DONE = "done.json"  # written last into a recording
MAX_LINES = 60
USAGE = """\
examples:
  golden.py check --against HEAD                   what do uncommitted changes change?
  golden.py check --against c6b5ee3 --only faults  the same for a part, in seconds
  golden.py check --against HEAD --carry           if nothing changes, recorded verdicts stay valid
  golden.py record --tree . --out /tmp/new
  golden.py compare /tmp/old /tmp/new"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 1 if recordings differ."""
    given = parser().parse_args(arguments)
    only = tuple(given.only.split(",")) if getattr(given, "only", None) else ()
    if getattr(given, "carry", False) and (only or given.definitions or given.renames != RENAMES):
        raise SystemExit("--carry needs the comparison of everything: leave out --only, --definitions and --renames.")
    if given.command == "record":
        make(given.tree, given.out, given.definitions, only)
        return 0
    if given.command == "compare":
        return tell(given.old, given.new, read_renames(given.renames))
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        old = recording_of(given.against, Path(folder), given.definitions, only)
        new = Path(folder) / "new"
        make(ROOT, new, given.definitions, only)
        differs = tell(old, new, read_renames(given.renames))
        if given.carry and not differs:
            carry(given.against, Path(folder) / "carried")
        return differs


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    top = argparse.ArgumentParser(
        description=__doc__, epilog=USAGE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = top.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="compare this tree with a revision")
    check.add_argument("--against", required=True, metavar="REVISION")
    check.add_argument("--carry", action="store_true", help="without a difference, verdicts stay valid for this tree")
    recorded = commands.add_parser("record", help="record a tree into a new folder")
    recorded.add_argument("--tree", type=Path, default=ROOT)
    recorded.add_argument("--out", type=Path, required=True)
    compared = commands.add_parser("compare", help="compare two recordings")
    compared.add_argument("old", type=Path)
    compared.add_argument("new", type=Path)
    for command in (check, recorded):
        command.add_argument("--only", metavar="NAME,NAME", help="these runs and searches of the plan alone")
        command.add_argument("--definitions", type=Path, help="experiments in place of a tree's own")
    for command in (check, compared):
        command.add_argument("--renames", type=Path, default=RENAMES, help="names that are meant to change")
    return top


def make(tree: Path, out: Path, definitions: Path | None, only: Sequence[str]) -> None:
    """Record a tree, and say how long it took and how many cells there are."""
    seconds = record(tree, out, definitions, only)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cells = sum(1 for _ in out.glob("runs/*/tables/runs/*.parquet"))
    trials = sum(1 for _ in out.glob("runs/*/tables/trials/*.parquet"))
    processor_s = used.ru_utime + used.ru_stime
    say(f"recorded {tree}: {cells} cells, {trials} trials, {seconds:.0f} s; {processor_s:.0f} s of processors so far")
    if not only and (lacking := members_without_cell(out)):
        raise RecordError(f"no cell runs {', '.join(lacking)}: add them to tests/golden/definitions")
    (out / DONE).write_text(json.dumps({"made with": made_with()}), encoding="utf-8")


def members_without_cell(recording: Path) -> list[str]:
    """List members of the four families that no cell of a recording ran."""
    listed = json.loads((recording / "texts/list.json").read_text(encoding="utf-8"))
    ran = set()
    for file in recording.glob("runs/*/tables/runs/*.parquet"):
        row = pq.ParquetFile(file).read(columns=list(FAMILIES)).to_pylist()[0]
        ran |= {(family, row[family].partition("(")[0]) for family in FAMILIES}
    known = [(family, row["name"]) for family in FAMILIES for row in listed[family]]
    return [f"{family}/{name}" for family, name in known if (family, name) not in ran]


def recording_of(revision: str, folder: Path, definitions: Path | None, only: Sequence[str]) -> Path:
    """Return the recording of a revision: the one that is kept from an earlier check, or a new one."""
    name = subprocess.check_output(["git", "rev-parse", f"{revision}^{{commit}}"], cwd=ROOT, text=True).strip()
    if definitions is not None:
        texts = [path.read_bytes() for path in sorted(definitions.iterdir())]
        name += f"-{hashlib.sha256(b''.join(texts)).hexdigest()[:8]}"
    kept = KEPT / "-".join([name, *only])
    if (kept / DONE).is_file() and json.loads((kept / DONE).read_text())["made with"] == made_with():
        say(f"kept from an earlier check: {kept}")
        return kept
    shutil.rmtree(kept, ignore_errors=True)
    make(tree_of(revision, folder / "tree"), kept, definitions, only)
    return kept


def tree_of(revision: str, tree: Path) -> Path:
    """Unpack the files of a revision into a new folder."""
    tree.mkdir()
    archive = subprocess.check_output(["git", "archive", revision], cwd=ROOT)
    subprocess.run(["tar", "-x", "-C", str(tree)], input=archive, check=True)
    return tree


def carry(revision: str, tree: Path) -> None:
    """Record that the code of this tree makes the tables of a revision."""
    name = subprocess.check_output(["git", "rev-parse", f"{revision}^{{commit}}"], cwd=ROOT, text=True).strip()
    old = tree_of(revision, tree) / "driftlab"
    command = [sys.executable, "-m", "driftlab.platform.results.claims.carried", str(old), name]
    subprocess.run(command, cwd=ROOT, check=True)


def made_with() -> str:
    """Hash the interpreter and the packages, which change figures too."""
    packages = sorted(f"{one.name} {one.version}" for one in metadata.distributions())
    return hashlib.sha256("\n".join([sys.version, *packages]).encode()).hexdigest()


def tell(old: Path, new: Path, renames: Renames) -> int:
    """Print the differences between two recordings."""
    found = list(compare(old, new, renames))
    for line in found[:MAX_LINES]:
        say(line)
    if len(found) > MAX_LINES:
        say(f"and {len(found) - MAX_LINES} more")
        for kind, count in Counter(map(kind_of, found)).most_common():
            say(f"{count:6} {kind}")
    say(f"{len(found)} differences." if found else "No difference.")
    return 1 if found else 0


def kind_of(line: str) -> str:
    """Return the kind of product in which a difference is: texts, the tables of a run, the cache."""
    return re.split(r"[/,:' ]", line.removeprefix("run "), maxsplit=1)[0] + (" (tables)" * line.startswith("run "))


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
