"""What is said of a process of Ray's that has ended: how it ended, and the last error in its log."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from driftlab.actors.local import KILLED, ending_of, last_error


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("raise SystemExit(7)", "has ended with exit code 7"),
        (f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})", KILLED),
        ("import os; os.abort()", "has ended by SIGABRT"),
    ],
)
def test_the_end_of_a_child_is_told_and_left_to_its_owner(program, said):
    with subprocess.Popen([sys.executable, "-S", "-c", f"input()\n{program}"], stdin=subprocess.PIPE) as child:
        assert ending_of(child.pid) == ""
        child.stdin.write(b"\n")
        child.stdin.flush()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert [ending_of(child.pid), ending_of(child.pid)] == [said, said]
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
