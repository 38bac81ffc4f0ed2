"""A local Ray: signals during its start, and errors of ended processes with the end of their log."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from unittest import mock

import pytest
from signals_factory import IGNORED, handler_of

from driftlab.actors import cluster, folders, local
from driftlab.actors.local import KILLED, LocalRay, ending_of, last_error
from driftlab.errors import RunError


@pytest.mark.parametrize(
    ("program", "description"),
    [
        ("raise SystemExit(7)", "has ended with exit code 7"),
        (f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})", KILLED),
        ("import os; os.abort()", "has ended by SIGABRT"),
    ],
)
def test_the_exit_of_a_child_is_described_without_reaping_it(program, description):
    with subprocess.Popen([sys.executable, "-S", "-c", f"input()\n{program}"], stdin=subprocess.PIPE) as child:
        assert ending_of(child.pid) == ""
        child.stdin.write(b"\n")
        child.stdin.flush()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert [ending_of(child.pid), ending_of(child.pid)] == [description, description]
        assert child.wait() != 0
    assert ending_of(child.pid) == "has ended"


LOG = """\
[2026-11-22 10:00:00,100 E 10 10] (raylet) worker.cc:5: An earlier error.
[2026-11-22 10:00:01,100 C 10 10] (raylet) node_manager.cc:1144: [Timeout] Exiting since it was marked as dead.
[2026-11-22 10:00:02,100 I 10 10] (raylet) node_manager.cc:7: Nothing.
*** StackTrace Information ***
"""


def test_the_last_error_of_a_log_is_quoted(tmp_path):
    assert last_error(tmp_path, "raylet") == ""
    (tmp_path / "raylet.err").write_text("")
    (tmp_path / "raylet.out").write_text("x" * 10**6 + "\n" + LOG)
    assert last_error(tmp_path, "raylet") == "its log says: [Timeout] Exiting since it was marked as dead"
    assert last_error(tmp_path, "gcs_server") == ""


def test_a_moved_folder_is_logged_once_per_process(tmp_path, monkeypatch, caplog):
    (place := tmp_path / ("x" * 100)).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as short:
        monkeypatch.setattr(folders, "SHORT", (folders.Path(short),))
        for _ in range(2):
            LocalRay("Go on.").close()
    (logged,) = [record.getMessage() for record in caplog.records if record.name == local.__name__]
    assert logged.startswith(f"Ray's files are in '{short}/driftlab-{os.getuid()}', because '{place}' cannot hold them")


@pytest.mark.parametrize(
    ("line", "written"),
    [("to  rún…\nand more", "to  rún… and more"), ("r\udcc3\udcban", "rún")],
    ids=["any letters, and two spaces", "bytes in a locale of ASCII"],
)
def test_the_watchdog_receives_paths_unchanged(tmp_path, monkeypatch, line, written):
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as place, (tmp_path / "received").open("wb") as received:
        monkeypatch.setattr(tempfile, "tempdir", place)
        copier = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=received)
        monkeypatch.setattr(local, "_start_watchdog", lambda folder: copier)
        LocalRay(line).close()
    first, *_ = (tmp_path / "received").read_text(encoding="utf-8").splitlines()
    assert first.endswith(f"before the run. {written}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_handlers_are_restored_during_the_start_of_ray(monkeypatch, number):
    """The start may take seconds after Ray has replaced the handlers."""
    took_s = []

    def start(folder, config, common):
        begun_s = time.monotonic()
        ctypes.CDLL(None).signal(int(number), ctypes.c_void_p(IGNORED))
        while handler_of(number) == IGNORED and time.monotonic() < begun_s + 5:
            time.sleep(0.001)
        took_s.append(time.monotonic() - begun_s)
        raise ValueError("enough")

    monkeypatch.setattr(cluster, "_start", start)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    before = signal.signal(number, signal.default_int_handler)
    try:
        with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as place, pytest.raises(ValueError, match="enough"):
            monkeypatch.setattr(tempfile, "tempdir", place)
            cluster.connect(cluster.ClusterConfig())
    finally:
        signal.signal(number, before)
    assert took_s[0] < 1


@pytest.mark.slow
def test_a_start_waits_for_an_abandoned_one(monkeypatch):
    """The abandoned start would remove the mark of the next Ray, and then shut that Ray down."""
    released, events = threading.Event(), []

    def init(**given):
        number = 1 + events.count("begins")
        events.append("begins")
        if number == 1:
            released.wait(10)
        events.append("fails")
        raise RuntimeError(f"start {number}")

    monkeypatch.setattr(cluster.ray, "init", init)
    monkeypatch.setattr(cluster.ray, "shutdown", lambda: events.append("shuts down"))
    monkeypatch.setattr(cluster, "KILL_TIMEOUT_S", 0.0)
    monkeypatch.setattr(cluster, "START_TIMEOUT_S", 0.1)
    with pytest.raises(RunError, match="no reply within"):
        cluster.connect(cluster.ClusterConfig())
    assert events == ["begins"]
    with pytest.raises(RunError, match="an earlier Ray of this process has not ended"):
        cluster.connect(cluster.ClusterConfig())
    monkeypatch.setattr(cluster, "START_TIMEOUT_S", 10.0)
    threading.Timer(0.3, released.set).start()
    with pytest.raises(RunError, match="start 2"):
        cluster.connect(cluster.ClusterConfig())
    assert events == ["begins", "fails", "shuts down"] * 2


def test_the_processes_of_a_local_ray_have_one_heap_and_the_usual_priority(monkeypatch, tmp_path):
    found, names = {}, ("MALLOC_ARENA_MAX", "RAY_worker_niceness")
    monkeypatch.setattr(cluster.ray, "init", lambda **_: found.update(os.environ))
    with mock.patch.dict(os.environ):
        for name in names:
            os.environ.pop(name, None)
        cluster._start(tmp_path, cluster.ClusterConfig(), {})
    assert [found[name] for name in names] == ["1", "0"]
