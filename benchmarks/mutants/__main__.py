"""Change files in small steps, one at a time, and print the changes that no fast unit test detects.

The changes are those of mutmut, except changes of texts, annotations and decorators. They are made in a copy of the
checkout. For each mutant the tests that run its statement are run, until one fails. The runner of mutmut does not fit:
its wrappers break tests of generators, and it leaves out properties and the constants of modules.
"""

from __future__ import annotations

import argparse
import difflib
import gc
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import coverage
import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators, operator_string

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "pandas", "pyarrow", "scipy.stats", "scipy.optimize", "cv2", "duckdb", "hypothesis", "simpy")
FAST = ("-x", "-q", "-p", "no:cacheprovider", "-m", "not slow and not ray and not gpu")
KEPT = cst.Annotation | cst.Decorator | cst.Import | cst.ImportFrom | cst.Raise | cst.FormattedString
LIMIT_S = 60.0  # for the tests of one mutant


class Mutator(cst.CSTVisitor):
    """Collects the mutants of each node, and the lines of its statement.

    A compound statement has its first line. A statement outside functions has no line: an import runs it once,
    whichever test needs it.
    """

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[cst.CSTNode, cst.CSTNode, range]] = []
        self._lines, self._inside = range(0), 0

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, KEPT):
            return False
        if isinstance(node, cst.BaseSmallStatement | cst.BaseCompoundStatement):
            span, small = self.get_metadata(PositionProvider, node), isinstance(node, cst.BaseSmallStatement)
            last = span.end.line if small else span.start.line
            self._lines = range(span.start.line, last + 1 if self._inside else span.start.line)
        self._inside += isinstance(node, cst.FunctionDef)
        for kind, operator in mutation_operators:
            if isinstance(node, kind) and operator is not operator_string:
                self.found += [(node, new, self._lines) for new in operator(node)]
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        self._inside -= isinstance(original_node, cst.FunctionDef)


def run(arguments: Sequence[str], limit_s: float, *, silent: bool = True) -> int | None:
    """Run pytest in a child process and return its exit code; None if it takes too long.

    The child and all processes that it started are killed at the end.
    """
    ends_s, child = time.monotonic() + limit_s, os.fork()
    if not child:
        import pytest

        gc.freeze()  # a search for garbage among the objects of the parent would copy all of its memory
        os.setsid()
        if silent:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(1, 2)
        os._exit(pytest.main([*FAST, *arguments]))
    try:
        while time.monotonic() < ends_s:
            if (ended := os.waitpid(child, os.WNOHANG))[0]:
                return os.waitstatus_to_exitcode(ended[1])
            time.sleep(0.01)
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(child, 0)


def judge(file: str, data: coverage.CoverageData, sample: float, seed: int) -> Iterator[str]:
    """Yield whether each mutant of a file was killed, and print those that were not."""
    path, source, draws = Path(file), Path(file).read_text(encoding="utf-8"), random.Random(f"{seed} {file}")
    contexts = data.contexts_by_lineno(str(path.resolve()))
    tree, mutator = MetadataWrapper(cst.parse_module(source), unsafe_skip_copy=True), Mutator()
    tree.visit(mutator)
    for old, new, lines in (one for one in mutator.found if draws.random() < sample):
        names = {name for line in lines for name in contexts.get(line, ())}
        if not lines or "" in names:  # an import runs it
            names = {name for found in contexts.values() for name in found}
        tests = sorted({name.partition("|")[0] for name in names - {""}})
        changed = tree.module.deep_replace(old, new).code
        path.write_text(changed, encoding="utf-8")
        code = run(tests, LIMIT_S) if tests else 0
        verdict = {0: "survived", None: "timed out"}.get(code, "killed") if tests else "not run by a test"
        if verdict != "killed":
            diff = list(difflib.unified_diff(source.splitlines(), changed.splitlines(), n=0, lineterm=""))
            print(f"{file}:{lines.start}: {verdict}", *diff[3:], sep="\n", flush=True)
        yield verdict
    path.write_text(source, encoding="utf-8")


def left_out(folder: str, names: Sequence[str]) -> set[str]:
    """Name the parts that a copy of the checkout leaves out: environments, caches and results."""
    results = ("build", "dist", "out", "runs") if Path(folder) == ROOT else ()
    return {name for name in names if name[0] == "." or name in ("__pycache__", *results)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="make mutants FILE=…", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="files or folders of the package")
    parser.add_argument("--tests", nargs="+", default=["tests/unit"], help="files or folders to take tests from")
    parser.add_argument("--sample", type=float, default=1.0, help="share of the mutants that are tried")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample")
    given = parser.parse_args()
    found = (file.resolve() for one in given.files for file in ([one] if one.is_file() else sorted(one.rglob("*.py"))))
    files = [str(file.relative_to(ROOT)) for file in found if file.stat().st_size]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="driftlab-mutants-") as copy:
        shutil.copytree(ROOT, copy, symlinks=True, ignore=left_out, dirs_exist_ok=True)
        os.chdir(copy)
        os.environ |= {"PYTHONPATH": copy, "TMPDIR": tempfile.mkdtemp(dir=copy), "COVERAGE_CORE": "ctrace"}
        sys.path.insert(0, copy)
        Path("mutants.ini").write_text("\n    ".join(["[run]\ninclude =", *files]), encoding="utf-8")
        noted = ["--cov", "--cov-context=test", "--cov-report=", "--cov-config=mutants.ini"]
        if run([*noted, *given.tests], 3600, silent=False):
            sys.exit("A test fails or takes too long without any mutant.")
        data, total = coverage.CoverageData(".coverage"), Counter[str]()
        data.read()
        os.environ["PYTHONDONTWRITEBYTECODE"], sys.dont_write_bytecode = "1", True  # of mutants
        for name in HEAVY:  # which every process of tests inherits
            import_module(name)
        for file in files:
            for stale in Path(file).parent.glob(f"__pycache__/{Path(file).stem}.*"):
                stale.unlink()
            verdicts = Counter(judge(file, data, given.sample, given.seed))
            total += verdicts
            print(f"{file}: {dict(verdicts)}", flush=True)
    every = total.total()
    print(f"killed {total['killed']} of {every} mutants ({total['killed'] / max(1, every):.1%}): {dict(total)}")


if __name__ == "__main__":
    main()
