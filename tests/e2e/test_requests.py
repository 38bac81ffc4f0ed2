"""Wrong requests: exit code 2 and one message with the value, the allowed values and the next step."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from dataclasses import dataclass
from html import unescape
from pathlib import Path

import psutil
import pytest
import yaml

from benchmarks.fuzz.grammar import INLINE, TINY
from driftlab.cli import app
from driftlab.platform.lab import paths
from driftlab.platform.lab.seal import run
from driftlab.platform.results.tables.recorder import table_file

LIMIT_S = 60  # keeps a broken command from hanging the tests
REFUSED_S = 10  # of processor time: the promise for a wrong request


@dataclass(frozen=True)
class Outcome:
    code: int
    output: str
    error: str


@pytest.fixture
def ask(tmp_path, monkeypatch, capsys):
    """Call the command in this process, in an empty temporary folder that must stay empty."""
    monkeypatch.chdir(tmp_path)

    def asked(*words: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["driftlab", *words])
        before = set(psutil.Process().children(recursive=True))
        with pytest.raises(SystemExit) as ended:
            app.main()
        assert set(psutil.Process().children(recursive=True)) <= before, "something was left running"
        output, error = capsys.readouterr()
        return Outcome(int(ended.value.code or 0), output, error)

    return asked


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(TINY, out=tmp_path_factory.mktemp("runs") / "finished").directory


@pytest.fixture
def folder(tmp_path: Path, finished: Path) -> Path:
    """Copy a finished run, so that a test may damage it."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(TINY))
    return path


def refused(outcome: Outcome, *said: str) -> None:
    assert (outcome.code, outcome.output) == (2, "")
    assert outcome.error.startswith(("Error: ", "Usage: "))
    assert outcome.error.count("Error: ") == 1
    assert "Traceback" not in outcome.error
    for words in said:
        assert words in outcome.error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), ("Name an experiment, such as `driftlab run quick`", "--resume DIR")),
        (("quik",), ("Unknown experiment 'quik'. Did you mean 'quick'? Known: ", ", quick, ")),
        (("nowhere.yaml",), ("There is no experiment file 'nowhere.yaml'. Built-in experiments: ", ", quick, ")),
        (("quick", "--system", "no_costum"), ("Unknown system 'no_costum'. Did you mean 'no_custom'? Known: ",)),
        (("quick", "--workload", "streets/drivng_la"), ("Did you mean 'streets/driving_la'? Known: ",)),
        (("quick", "--workload", "video:/nowhere.mp4"), ("There is no video file '/nowhere.mp4'. Give the path",)),
        (("quick", "--backend", "rya"), ("'rya' is not one of 'ray', 'inline'",)),
        (("quick", "--workers", "0"), ("'--workers'", "greater than or equal to 1")),
        (("quick", "--workers", "two"), ("'--workers'",)),
        (("quick", "--clock", "sundial"), ("'sundial' is not one of 'virtual', 'wall'",)),
        (("quick", "--sede", "1"), ("--sede", "--seed")),
        (("quick", "--seed", "one"), ("--seed 'one' is no seed; give whole numbers from 0, such as 0,1,2 or 0..4",)),
        (("quick", "--seed", "-1"), ("--seed '-1' is no seed",)),
        (("quick", "--seed", "²"), ("--seed '²' is no seed",)),
        (("quick", "--seed", "4..2"), ("'4..2' is no range of 1 to 10000 seeds",)),
        (("quick", "--seed", "0..99999999999999999999"), ("is no seed", "give whole numbers")),
        (("quick", "--seed", "9223372036854775808"), ("seeds.0 is 9223372036854775808: input should be less than",)),
        (("quick", "--seed", ","), ("--seed ',' names nothing", "leave --seed out")),
        (("quick", "--system", ""), ("--system '' names nothing",)),
        (("quick", "--set", "seeds=[]"), ("seeds is empty: give at least one",)),
        (("quick", "--set", "systems=[]"), ("systems is empty: give at least one",)),
        (("quick", "--set", "window_s"), ("--set 'window_s' is not KEY=VALUE, such as",)),
        (("quick", "--set", "window_s=-1"), ("window_s is -1: input should be greater than 0",)),
        (("quick", "--set", "window_s=ten"), ("window_s is 'ten': input should be a valid number",)),
        (("quick", "--set", "windov_s=1"), ("windov_s is not known here. Did you mean 'window_s'? Known: ",)),
        (("quick", "--set", "workloads.7.fps=1"), ("'7' is no position in a list of 1 (0 to 0)",)),
        (("quick", "--set", "workloads.0.duration_s=-4"), ("workloads.0.duration_s is -4",)),
        (("quick", "--set", "fleets.0.devices.0.hardware=jetsn-nx"), ("Did you mean 'jetson-nx'?",)),
        (("quick", "--set", "systems.1.streaming.sample_s=true"), ("'sample_s' is True, expected float",)),
        (("quick", "--set", "compute.torch_device=cude"), ("'cude'; allowed: cpu, cuda, cuda:N",)),
        (("quick", "--set", "compute.torch_device=cuda:²"), ("'cuda:²'; allowed: cpu, cuda, cuda:N",)),
        (("quick", "--set", "compute.gpus_per_actor=.inf"), ("compute.gpus_per_actor is inf",)),
        (("quick", "--set", "systems.0.name=../x"), ("systems.0.name is '../x'",)),
        (("quick", "--set", "workloads.0.churn={tick_s: 1e-12}"), ("ticks of churn", "allowed are")),
        (("quick", "--set", "workloads.0.churn={priorities: []}"), ("workloads.0: Bad app trace", "priorities")),
        (("quick", "--set", "workloads.0.churn={duration_s: 5}"), ("it lasts as long as the workload",)),
        (
            ("quick", "--set", "workloads.0.apps=[{name: a, workload: x}]"),
            ("workloads.0.apps.0: Unknown workload 'x'",),
        ),
        (("quick", "--set", f"seeds={'[' * 3000}"), ("is nested more than 100 deep",)),
        (("quick", "--set", "fleets.0.name=a/b"), ("fleets.0.name is 'a/b'",)),
        (("/etc/passwd",), ("'/etc/passwd' is no experiment: the name of a file must end in .yaml or .yml",)),
        (("quick", "--set", "size=huge"), ("Unknown size 'huge'. Known: ",)),
        (("quick", "--backend", "inline", "--address", "auto"), ("--address: only Ray has that", "leave one of them")),
        (("quick", "--resume", "x"), ("--resume continues a run with its settings; give it alone",)),
        (
            ("--resume", "nowhere"),
            ("No run folder at 'nowhere': it does not exist. Give a folder that `driftlab run` made",),
        ),
    ],
)
def test_a_wrong_run_is_refused_before_anything_is_made(ask, tmp_path, words, message):
    refused(ask("run", *words), *message)
    assert list(tmp_path.iterdir()) == []


def test_all_faults_at_once(ask):
    changes = ("seeds=[]", "window_s=0", "clock=moon", "server.gpu=1")
    outcome = ask("run", "quick", *(word for change in changes for word in ("--set", change)))
    refused(outcome, "quick: 4 faults", "seeds is empty", "window_s is 0", "clock is 'moon'", "server.gpu is not known")


def test_a_missing_gpu(ask, tmp_path, monkeypatch, mine):
    monkeypatch.setattr("driftlab.platform.sim.host.gpus", lambda: 0)
    outcome = ask("run", str(mine), *INLINE, "--set", "compute.torch_device=cuda:3")
    refused(outcome, "'cuda:3' and this machine has 0 GPUs; use cpu, or --address of a cluster that has one")
    assert list(tmp_path.iterdir()) == [mine]


class TestOutputFolder:
    def test_a_foreign_folder_stays_as_it_is(self, ask, tmp_path, mine):
        foreign = tmp_path / "thesis"
        foreign.mkdir()
        (foreign / "chapter-1.tex").write_text("years of work")
        refused(ask("run", str(mine), *INLINE, "--out", str(foreign)), str(foreign), "nothing in it was touched")
        assert [(path.name, path.read_text()) for path in foreign.iterdir()] == [("chapter-1.tex", "years of work")]

    def test_an_earlier_run_stays_as_it_is(self, ask, mine, folder):
        before = contents(folder)
        refused(ask("run", str(mine), *INLINE, "--out", str(folder)), f"continue it with --resume {folder}")
        assert contents(folder) == before

    @pytest.mark.parametrize("place", ["file", "file/run", "/proc/run"])
    def test_an_output_folder_that_cannot_be_written(self, ask, tmp_path, mine, place):
        (tmp_path / "file").write_text("kept")
        refused(ask("run", str(mine), *INLINE, "--out", place), place, "another --out")
        assert (tmp_path / "file").read_text() == "kept"

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    def test_an_output_folder_of_another_user(self, ask, tmp_path, mine):
        (tmp_path / "locked").mkdir(mode=0o500)
        refused(ask("run", str(mine), *INLINE, "--out", "locked/run"), "Cannot write to output folder", "another --out")


class TestRunFolder:
    def test_a_folder_that_is_no_run(self, ask, tmp_path):
        (tmp_path / "thesis").mkdir()
        refused(ask("run", *INLINE, "--resume", "thesis"), "'thesis' is not a run folder: it has no spec.yaml")
        assert list((tmp_path / "thesis").iterdir()) == []

    @pytest.mark.parametrize("content", [b"", b"name: [", b"\xff\xfe\x00", b"name: tiny\n"])
    def test_a_damaged_spec(self, ask, folder, content):
        (folder / "spec.yaml").write_bytes(content)
        before = contents(folder)
        refused(ask("run", *INLINE, "--resume", str(folder)), f"{folder / 'spec.yaml'}")
        assert contents(folder) == before

    def test_a_damaged_note_on_the_run_is_refused_before_anything_runs(self, ask, folder):
        table_file(folder / "tables", "runs", "no_custom/running/one/seed-0").unlink()
        (folder / "run.json").write_text('{"command": [1]}')
        before = contents(folder)
        refused(ask("run", *INLINE, "--resume", str(folder)), "run.json", "Remove it")
        assert contents(folder) == before

    def test_a_file_in_the_place_of_a_table_is_refused_before_anything_runs(self, ask, folder):
        shutil.rmtree(folder / "tables" / "shares")
        (folder / "tables" / "shares").write_text("mine")
        before = contents(folder)
        refused(
            ask("run", *INLINE, "--resume", str(folder)), "tables/shares' is a link or a file", "Put the folder back"
        )
        assert contents(folder) == before

    def test_a_full_disk_causes_an_error_that_names_the_resume_command(self, ask, folder):
        (folder / "log.jsonl").unlink()
        (folder / "log.jsonl").symlink_to("/dev/full")
        table_file(folder / "tables", "runs", "no_custom/running/one/seed-0").unlink()
        outcome = ask("run", *INLINE, "--resume", str(folder))
        assert outcome.code == 1
        assert f"--resume {folder}" in outcome.error
        assert "No space left on device; free space or change permissions" in outcome.error.replace("\n", "")

    def test_a_second_driftlab_in_it(self, ask, folder):
        with paths.locked(folder):
            outcome = ask("run", *INLINE, "--resume", str(folder))
        refused(outcome, f"Another driftlab is working in '{folder}'; wait for it or stop it")

    @pytest.mark.parametrize("command", ["report", "diff"])
    @pytest.mark.parametrize("harm", ["spec.yaml", "table"])
    def test_reading_a_damaged_run_names_the_file_and_the_fix(self, ask, folder, finished, command, harm):
        cell = "no_custom/running/one/seed-0"
        file = folder / "spec.yaml" if harm == "spec.yaml" else table_file(folder / "tables", "frames", cell)
        file.write_bytes(b"name: [")
        words = (str(folder), str(finished)) if command == "diff" else (str(folder),)
        outcome = ask(command, *words)
        if (command, harm) != ("report", "table"):
            refused(outcome, str(file))
            return
        assert outcome.code == 0  # a report opens without a table, and names it
        assert cell in outcome.error
        assert "The table 'frames' is missing from this report" in unescape(
            (folder / "report.html").read_text(encoding="utf-8")
        )

    def test_the_named_fix_repairs_the_run(self, ask, folder, finished):
        table_file(folder / "tables", "frames", "no_custom/running/one/seed-0").write_bytes(b"PAR1")
        assert ask("run", *INLINE, "--resume", str(folder)).code == 0
        assert ask("diff", str(folder), str(finished)) == Outcome(0, "No difference.\n", "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("run", "quick", "--address", "127.0.0.1:1"),
            ("No Ray cluster responds at '127.0.0.1:1'", "leave --address out"),
        ),
        (("run", "quick", "--address", "here and there"), ("'here and there'",)),
        (("run", "quick", "--set", "window_s=-1", "--out", "/proc/run"), ("window_s is -1",)),
        (("rnu",), ("Did you mean 'run'?",)),
    ],
)
def test_the_real_command_prints_the_same(tmp_path, words, message):
    """Within seconds, without a traceback, and with every process ended that it started."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "driftlab", *words]
    environment = {**os.environ, "COLUMNS": "200"}
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as asked:
        try:
            output, error = asked.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            asked.kill()
            pytest.fail(f"not refused within {LIMIT_S} s")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < REFUSED_S
    refused(Outcome(asked.returncode, output, error), *message)
    left = [process for process in psutil.process_iter() if in_session(process, asked.pid)]
    assert left == [] and list(tmp_path.iterdir()) == []


def test_a_terminated_run_ends_and_names_the_command_that_resumes_it(tmp_path, mine):
    mine.write_text(yaml.safe_dump({**TINY, "clock": "wall", "workloads": [{"name": "streets/running"}]}))
    command = [sys.executable, "-m", "driftlab", "run", str(mine), *INLINE, "--out", "run"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as asked:
        assert asked.stderr is not None
        lines = [next(asked.stderr)]
        while "ready" not in lines[-1]:
            lines.append(next(asked.stderr))
        asked.terminate()
        lines += asked.communicate(timeout=LIMIT_S)[1].splitlines()
    assert asked.returncode == 128 + 15
    assert any(line.startswith("Stopping: ") for line in lines)
    assert any(line.endswith(f"--resume {tmp_path / 'run'}") for line in lines)
    assert lines[-1] == "Interrupted."


def in_session(process: psutil.Process, session: int) -> bool:
    try:
        return os.getsid(process.pid) == session
    except (ProcessLookupError, PermissionError):
        return False


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
