"""The command line: exit codes, one message for an invalid request, one JSON document for --json."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import results_factory as factory
from command_factory import run_command

from driftlab import __version__
from driftlab.cli import app as front
from driftlab.cli.catalogue import show
from driftlab.cli.kinds import KINDS
from driftlab.cli.output import print_ranked
from driftlab.cli.run import _resume_command
from driftlab.datasets.catalogue import open_stream
from driftlab.errors import DriftlabError, RequestError
from driftlab.platform.results.claims import base as claims
from driftlab.platform.results.tables.read import open_run


def call(*words: str):
    return run_command(list(words))


def test_version():
    assert call("--version").stdout == f"driftlab {__version__}\n"


def test_paths_are_encoded_in_utf8_in_every_locale(tmp_path):
    command = [sys.executable, "-m", "driftlab", "report", str(tmp_path / "rún 1")]
    ascii_alone = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0"}
    done = subprocess.run(command, capture_output=True, check=False, env=ascii_alone)
    assert done.returncode == 2
    assert str(tmp_path / "rún 1") in done.stderr.decode()


def test_an_argument_that_is_not_utf8_is_refused_before_the_work(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["driftlab", "run", "quick", "--out", "a\udcff"])
    with pytest.raises(SystemExit) as ended:
        front.main()
    assert ended.value.code == 2
    assert "'a\\udcff' is not UTF-8" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["run", "a  run", "rún's", "$HOME;ls"])
def test_the_resume_command_is_quoted_for_a_shell(tmp_path, name: str):
    words = shlex.split(_resume_command(tmp_path / name).removeprefix("To go on: "))
    assert words == ["driftlab", "run", "--resume", str(tmp_path / name)]


def test_help_lists_every_command():
    output = call("--help").output
    assert call("-h").output == output
    commands = (
        "doctor",
        "list",
        "show",
        "check",
        "run",
        "demo",
        "report",
        "claims",
        "diff",
        "export",
        "serve",
        "device",
    )
    for command in commands:
        assert f"\n  {command} " in output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("lst",), "Did you mean 'list'?"),
        (("list", "--jsn"), "--json"),
        (("list", "sytems"), "Did you mean 'systems'?"),
        (("show", "systems/no_costum"), "Did you mean 'no_custom'?"),
        (("show", "adaptation/nothing"), "Known: "),
        (("show", "ams"), "Use systems/ams or streaming/ams or spaces/ams."),
        (("show", "amz"), "Did you mean 'ams'? Kinds: systems, "),
        (("show", "systems/no_custom", "--image", "a.png"), "--image draws workloads"),
        (("diff", "nowhere", "nowhere"), "nowhere"),
        (("report", "nowhere"), "nowhere"),
        (("claims", "nowhere"), "nowhere"),
    ],
)
def test_an_invalid_request_gives_one_message_and_exit_code_two(
    monkeypatch, capsys, words: tuple[str, ...], message: str
):
    monkeypatch.setenv("COLUMNS", "110")
    monkeypatch.setattr(sys, "argv", ["driftlab", *words])
    with pytest.raises(SystemExit) as ended:
        front.main()
    assert ended.value.code == front.WRONG_REQUEST
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.count("Error") == 1
    assert "Traceback" not in shown.err
    assert shown.out == ""


@pytest.mark.parametrize(
    ("words", "now"),
    [
        (("report", "a", "--beside", "b"), "--compare-to"),
        (("run", "quick", "--rack=2"), "--devices-per-actor"),
        (("show", "workloads/streets/running", "--film", "a.mp4"), "--video"),
        (("serve", "--sessions", "3"), "--max-sessions"),
        (("serve", "--rate", "3"), "--rate-limit"),
        (("serve", "--folder", "a"), "--state-dir"),
    ],
)
def test_the_error_for_a_renamed_option_has_its_new_name(words: tuple[str, ...], now: str):
    assert str(call(*words).exception).endswith(f". It is now '{now}'.")


def test_the_error_for_an_unknown_option_is_the_usual_one():
    assert "--json" in call("list", "--jsn").output
    assert isinstance(call("list", "--rate", "3").exception, SystemExit)


@pytest.mark.parametrize(
    ("error", "code"),
    [(RequestError("asked wrongly"), 2), (DriftlabError("went wrong"), 1), (KeyboardInterrupt(), 130)],
)
def test_errors_have_exit_codes(monkeypatch, capsys, error: BaseException, code: int):
    def fail(*args: object) -> None:
        raise error

    monkeypatch.setattr(front.catalogue, "kind_of", fail)
    monkeypatch.setattr(sys, "argv", ["driftlab", "list"])
    with pytest.raises(SystemExit) as end:
        front.main()
    assert end.value.code == code
    shown = capsys.readouterr()
    assert shown.err.count("\n") == 1
    assert (str(error) or "Interrupted") in shown.err
    assert shown.out == ""


def test_a_bug_has_a_traceback(monkeypatch):
    def fail(*args: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(front.catalogue, "kind_of", fail)
    monkeypatch.setattr(sys, "argv", ["driftlab", "list"])
    with pytest.raises(ZeroDivisionError):
        front.main()


STOPPED = """
import os, signal, sys, time
from driftlab.cli import app
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background has it ignored
sys.setswitchinterval(10)  # the thread that acknowledges is slow

def stop(name):
    signal.setitimer(signal.ITIMER_REAL, 0.1)  # as Ray's handler of SIGTERM does, and then aborts the process
    try:
        os.kill(os.getpid(), signal.Signals[os.environ["SIGNAL"]])
    finally:
        print("To go on", file=sys.stderr)
        os.write(2, b"what a library in C says while it is ended")
        time.sleep(0.2)
        import atexit
        atexit.register(os.abort)  # as a library may on its way out

app.catalogue.kind_of = stop
sys.argv[1:] = ["list"]
app.main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_acknowledged_immediately_and_sets_the_exit_code(number):
    done = subprocess.run(
        [sys.executable, "-c", STOPPED],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"SIGNAL": number.name},
    )
    assert done.returncode == 128 + number
    stopping = "Stopping: ending all processes; finished results are kept."
    assert done.stderr.splitlines() == [stopping, "To go on", "Interrupted."]


@pytest.mark.slow
def test_a_closed_pipe_gives_no_traceback():
    code = f"{sys.executable} -m driftlab list --json | head -n 1"
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "{\n"
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(KINDS))
def test_every_listed_name_can_be_shown(kind: str, capsys: pytest.CaptureFixture):
    """By the function of the command: to build the command line takes longer than most names."""
    listed = json.loads(call("list", kind, "--json").stdout)[kind]
    assert [entry["name"] for entry in listed] == [line.split()[0] for line in call("list", kind).stdout.splitlines()]
    for entry in listed[:: 5 if kind == "spaces" else 1]:  # their contract reads every space
        show(f"{kind}/{entry['name']}", as_json=True)
        shown = json.loads(capsys.readouterr().out)
        assert shown["kind"] == kind
        assert shown["name"] == entry["name"]
    for entry in listed[:3]:
        assert entry["name"] in call("show", f"{kind}/{entry['name']}").stdout


def test_show_lists_the_parameters_of_a_member_with_defaults():
    facts = json.loads(call("show", "adaptation/distill", "--json").stdout)["facts"]
    assert facts[0] == {
        "parameter": "fraction",
        "default": 0.05,
        "unit": "",
        "type": "float",
        "range": "in (0, 1]",
        "meaning": "share of the weights that a phase changes",
    }


@pytest.mark.slow
def test_list_has_all_kinds():
    assert set(json.loads(call("list", "--json").stdout)) == set(KINDS)
    lines = call("list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(KINDS)
    listed = json.loads(call("list", "--json").stdout)
    assert [int(line.split()[1]) for line in lines] == [len(names) for names in listed.values()]


@pytest.mark.slow
def test_names_are_counted_without_reading_experiments_and_claims():
    heavy = "driftlab.platform.lab.read", "driftlab.platform.results.claims.base", "pyarrow", "torch"
    code = "import sys; from driftlab.cli.catalogue import list_names; list_names(); "
    code += f"print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.slow
def test_serve_states_that_the_server_starts_before_it_does(monkeypatch, tmp_path):
    monkeypatch.setattr("driftlab.serve_apps.deployment.serving", lambda args, where, address: 1 / 0)
    stopped = call("serve", "--state-dir", str(tmp_path / "served"))
    assert isinstance(stopped.exception, ZeroDivisionError)
    assert "Starting the server" in stopped.output
    assert call("serve", "--token", "short").output == ""


@pytest.mark.slow
def test_show_finds_the_kind_of_a_name_that_only_one_kind_has():
    assert call("show", "resnet18").stdout == call("show", "networks/resnet18").stdout


@pytest.mark.slow
def test_a_contact_sheet_has_frames_and_ground_truth(tmp_path: Path):
    image = pytest.importorskip("PIL.Image")
    path = tmp_path / "sheet.png"
    result = call("show", "workloads/streets/driving_la", "--image", str(path))
    assert result.exit_code == 0, result.output
    with image.open(path) as sheet:
        assert len(sheet.convert("RGB").getcolors(2**24)) > 1000  # textured frames, not a blank page


@pytest.mark.slow
def test_a_contact_sheet_uses_parameters(tmp_path: Path):
    sheets = []
    for sets in ([], ["fog.severity=0.9", "fog.schedule=switch"], ["fog=0.9"]):
        path = tmp_path / f"{len(sheets)}.png"
        words = [word for one in sets for word in ("--set", one)]
        assert call("show", "workloads/city/driving_la", "--image", str(path), *words).exit_code == 0
        sheets.append(path.read_bytes())
    assert len(set(sheets)) == 3
    for wrong in ("height=3", "fog.severity=9", "fogg=1"):
        refused = call("show", "workloads/city/driving_la", "--image", str(tmp_path / "x.png"), "--set", wrong)
        assert isinstance(refused.exception, RequestError), wrong
    assert isinstance(call("show", "workloads/city/driving_la", "--set", "fog=1").exception, RequestError)


def test_a_video_is_shown_or_refused(tmp_path: Path):
    import cv2
    import numpy as np

    path = tmp_path / "film.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 5, (48, 32))
    for value in range(10):
        writer.write(np.full((32, 48, 3), 20 * value, np.uint8))
    writer.release()
    shown = json.loads(call("show", f"workloads/video:{path}", "--json").stdout)
    assert {fact["property"]: fact["value"] for fact in shown["facts"]}["duration_s"] == pytest.approx(2.0)
    assert call("show", "workloads/video:PATH").exit_code == 0
    refused = call("show", "workloads/video:nope").exception
    assert isinstance(refused, RequestError)
    assert str(refused).startswith("There is no video file 'nope'. Give the path of a file")


@pytest.mark.slow
def test_a_stream_is_written_as_a_video_with_label_maps(tmp_path: Path):
    video = tmp_path / "walk.mp4"
    words = ("show", "workloads/streets/walking_paris", "--video", str(video), "--seconds", "1", "--seed", "3")
    assert call(*words, "--set", "crowd=2").exit_code == 0
    at = {"seed": 3, "height": 144, "width": 256, "fps": 30.0, "duration_s": 1.0}
    drawn = open_stream("streets/walking_paris", **at, crowd=2.0).at([0.0, 0.5, 0.9])
    shown = open_stream(f"video:{video}", **at).at([0.0, 0.5, 0.9])
    assert np.array_equal(shown.labels, drawn.labels)
    wrong = shown.images.astype(float) - drawn.images
    assert 0 < np.abs(wrong).mean() < 8, "the codec changes little"
    assert open_stream(f"video:{video}", **at).duration_s == 1.0

    before = video.read_bytes()
    again = call(*words).exception
    assert isinstance(again, RequestError) and "exists" in str(again)
    assert video.read_bytes() == before
    for name, place in (
        ("workloads/signs/depot", tmp_path / "signs.mp4"),
        ("loads/user", tmp_path / "load.mp4"),
        ("workloads/streets/walking_paris", tmp_path / "walk.txt"),
        ("workloads/streets/walking_paris", tmp_path / "nowhere" / "walk.mp4"),
    ):
        refused = call("show", name, "--video", str(place), "--seconds", "1").exception
        assert isinstance(refused, RequestError), name
        assert not place.exists()


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("loads/user", ("--image", "a.png", "--set", "a=1"), "parameters of workloads; loads/user has none"),
        ("shifts/fog", ("--image", "a.png", "--set", "a=1"), "parameters of workloads; shifts/fog has none"),
        ("workloads/streets/running", ("--seed", "0"), "--seed has an effect only with --image or --video"),
        ("workloads/streets/running", ("--seconds", "60"), "--seconds has an effect only with --image or --video"),
        ("workloads/streets/running", ("--image", "a.png", "--seconds", "60"), "--seconds is the length of a video"),
        ("workloads/streets/running", ("--image", "a.jpg"), "'a.jpg' is not the name of a PNG file"),
        ("loads/user", ("--image", "a"), "'a' is not the name of a PNG file"),
        ("workloads/streets/running", ("--image", "a.png", "--video", "a.txt"), "'a.txt' is not the name of a video"),
        ("workloads/streets/running", ("--image", "a.png", "--video", "b/a.mp4"), "folder 'b' does not exist"),
        ("loads/user", ("--image", "a.png", "--video", "a.mp4"), "loads/user has no frames"),
        ("workloads/city/running", ("--image", "a.png", "--set", "rain"), "is not KEY=VALUE, such as --set pace=1."),
    ],
)
def test_an_invalid_request_to_draw_writes_no_file(tmp_path, monkeypatch, name, words, message):
    monkeypatch.chdir(tmp_path)
    refused = call("show", name, *words)
    assert isinstance(refused.exception, RequestError)
    assert message in str(refused.exception)
    assert "Drawn to" not in refused.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("command", "name"), [("run", "quick"), ("tune", "ams")])
def test_a_dry_run_refuses_a_missing_gpu(command, name, monkeypatch):
    monkeypatch.setattr("driftlab.platform.sim.host.gpus", lambda: 0)
    words = (command, name, "--set", "compute.torch_device=cuda", "--dry-run")
    assert "this machine has 0 GPUs" in str(call(*words).exception)
    assert call(*words, "--address", "auto").exit_code == 0


@pytest.mark.slow
def test_an_unwritable_image_is_an_invalid_request(tmp_path: Path):
    result = call("show", "workloads/streets/driving_la", "--image", str(tmp_path / "nowhere" / "sheet.png"))
    assert isinstance(result.exception, RequestError)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three small runs below runs/: a and b alike, c of another seed and the newest."""
    folder = tmp_path_factory.mktemp("made")
    for age, (name, seed) in enumerate([("a", 0), ("b", 0), ("c", 1)]):
        run = folder / "runs" / name
        systems = ("no_custom", "one_time")
        factory.make_run(run, systems=systems, workloads=("streets/interview",), seeds=(seed,), snapshots=False)
        os.utime(run / "spec.yaml", (1e9 + age, 1e9 + age))
    return folder


@pytest.mark.slow
def test_diff_of_equal_runs_is_empty(made: Path):
    result = call("diff", str(made / "runs/a"), str(made / "runs/b"))
    assert result.exit_code == 0
    assert result.stdout == "No difference.\n"


@pytest.mark.slow
def test_diff_of_different_runs_lists_differences_and_exits_with_one(made: Path):
    result = call("diff", str(made / "runs/a"), str(made / "runs/c"))
    assert result.exit_code == front.FAILED
    assert "only in" in result.stdout
    document = json.loads(call("diff", str(made / "runs/a"), str(made / "runs/c"), "--json").stdout)
    assert document["identical"] is False
    assert document["differences"]


@pytest.fixture(scope="module")
def judged_once() -> Iterator[None]:
    """Judge the claims of each run once for all tests that print them."""
    judge = cache(lambda path, judge=claims.evaluate: judge(open_run(path)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claims, "evaluate", lambda run: judge(run.path.resolve()))
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("judged_once")
def test_claims_use_the_newest_run_by_default(made: Path, monkeypatch):
    monkeypatch.chdir(made)
    document = json.loads(call("claims", "--json").stdout)
    assert Path(document["run"]).name == "c"
    assert {claim["id"] for claim in document["claims"]} == set(KINDS["claims"].summaries())
    named = json.loads(call("claims", "runs/a", "--json").stdout)
    assert Path(named["run"]).name == "a"


@pytest.mark.slow
@pytest.mark.usefixtures("judged_once")
@pytest.mark.parametrize(("columns", "widest"), [("70", 70), ("", 100)])
def test_claims_fit_the_terminal_and_group_untestable_ones(made: Path, monkeypatch, columns: str, widest: int):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(sys, "__stdout__", None)  # the tests may run in a terminal
    lines = call("claims", str(made / "runs/a")).stdout.splitlines()
    assert widest - 8 < max(map(len, lines)) <= widest
    assert [name.strip() for name in next(line for line in lines if "why" in line).split("|")] == [
        "not testable here",
        "why",
    ]
    assert any(line.startswith("DELTA-1, DELTA-2 ") for line in lines)


def test_claims_without_a_run_are_an_invalid_request(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert isinstance(call("claims").exception, RequestError)


@pytest.mark.slow
@pytest.mark.usefixtures("few_claims", "few_figures")
def test_report_prints_its_path(made: Path):
    printed = Path(call("report", str(made / "runs/a")).stdout.strip())
    assert printed.is_file()
    assert printed.with_name("report.md").is_file()


def test_a_ranked_table_fits_a_page_with_the_best_in_bold_and_bounds_apart(monkeypatch):
    lines = []
    monkeypatch.setattr("driftlab.cli.output.typer.echo", lambda text="": lines.append(text))
    bounds = [(["no_custom (bound: no adaptation)", "0.1", "9"], "dim")]
    methods = [(["a" * 200, "0.62 ± 0.10", "1"], ""), (["ams", "0.70 ± 0.10", "12"], "bold")]
    print_ranked([["system", "live mIoU", "up"], ["", "", "kbit/s"]], [*methods, *bounds])
    plain = [re.sub(r"\x1b\[\d+m", "", line) for line in lines]
    assert max(map(len, plain)) == 100
    assert plain[0].split() == ["system", "live", "mIoU", "up"]
    assert (lines[3].startswith("\x1b[1mams "), lines[4], lines[5].startswith("\x1b[2mno_custom")) == (True, "", True)
    assert plain[2].startswith("aaaa") and "…" in plain[2]
    assert {line.rstrip()[-1] for line in plain[2:] if line} == {"1", "2", "9"}
