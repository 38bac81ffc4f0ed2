"""The folder of a run: created completely, locked, and refused if it has other contents."""

from __future__ import annotations

import contextlib
import fcntl
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from driftlab.errors import RequestError
from driftlab.platform.lab import paths
from driftlab.platform.sim.host import check_torch_device


def refusal(call, *args) -> str:
    with pytest.raises(RequestError) as caught:
        call(*args)
    return str(caught.value)


def make(path: Path) -> Path:
    return paths.new_run(path, {"name": "test", "seeds": [0]})


def test_a_new_run_has_its_spec(tmp_path):
    folder = make(tmp_path / "a" / "b")
    assert yaml.safe_load((folder / "spec.yaml").read_text()) == {"name": "test", "seeds": [0]}
    assert sorted(path.name for path in folder.iterdir()) == ["spec.yaml", "tables"]


@pytest.mark.parametrize("damage", [None, "", "{torn"])
def test_where_a_run_came_from_is_written_once_and_again_where_it_was_damaged(tmp_path, damage):
    folder = make(tmp_path)
    paths.keep_info(folder, lambda: {"python": "1"})
    paths.keep_info(folder, lambda: {"python": "2"})
    assert json.loads((folder / "run.json").read_text()) == {"python": "1"}
    if damage is None:
        (folder / "run.json").unlink()
    else:
        (folder / "run.json").write_text(damage)
    paths.keep_info(folder, lambda: {"python": "3"})
    assert json.loads((folder / "run.json").read_text()) == {"python": "3"}


def test_an_empty_folder_may_be_used(tmp_path):
    assert make(tmp_path) == tmp_path


def test_two_runs_in_one_second_have_separate_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = {make(paths.fresh("test")) for _ in range(5)}
    assert len(folders) == 5
    assert {folder.parent for folder in folders} == {tmp_path / "runs"}


class TestOutputFolders:
    def test_a_folder_with_files_is_not_touched(self, tmp_path):
        (tmp_path / "thesis.tex").write_text("years of work")
        message = refusal(make, tmp_path)
        assert "is not empty: it is not a run, and nothing in it was touched; choose another --out" in message
        assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]

    def test_a_run_prints_the_resume_command(self, tmp_path):
        make(tmp_path / "run")
        assert f"continue it with --resume {tmp_path / 'run'}" in refusal(make, tmp_path / "run")

    def test_a_file_is_no_folder(self, tmp_path):
        (tmp_path / "file").touch()
        assert "choose another --out" in refusal(make, tmp_path / "file")

    @pytest.mark.parametrize("place", ["file/run", "/proc/run", "/dev/null/run"])
    def test_an_output_folder_that_cannot_be_written(self, tmp_path, place):
        (tmp_path / "file").touch()
        message = refusal(make, tmp_path / place)
        assert message.startswith(f"Cannot write to output folder '{tmp_path / place}': ")
        assert message.endswith("Choose another --out.")


class TestLock:
    HOLD = "import sys, pathlib\nfrom driftlab.platform.lab.paths import locked\n" + (
        "with locked(pathlib.Path(sys.argv[1])):\n    print('held', flush=True)\n    sys.stdin.read()\n"
    )

    def test_a_second_driftlab_is_refused_until_the_first_has_ended_however_it_ends(self, tmp_path):
        def enter() -> None:
            with paths.locked(tmp_path):
                pass

        command = [sys.executable, "-c", self.HOLD, str(tmp_path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
            assert first.stdout is not None
            assert first.stdout.readline() == "held\n"
            assert "Another driftlab is working in" in refusal(enter)
            first.kill()
            first.wait()
        enter()

    def test_a_lock_that_was_removed_while_it_was_opened_is_none(self, tmp_path, monkeypatch):
        """Its owner was refused and has cleared up; another run may hold the lock that followed."""
        flock, times = fcntl.flock, []

        def late(file, how) -> None:
            if not times:
                (tmp_path / ".lock").unlink()
            times.append(how)
            flock(file, how)

        monkeypatch.setattr(fcntl, "flock", late)
        with paths.locked(tmp_path), pytest.raises(RequestError, match="Another driftlab"), paths.locked(tmp_path):
            pass
        assert len(times) == 3

    def test_the_target_of_a_link_is_not_touched(self, tmp_path):
        (tmp_path / "thesis.tex").write_text("years of work")
        (tmp_path / ".lock").symlink_to("thesis.tex")
        with pytest.raises(OSError, match="symbolic links"), paths.locked(tmp_path):
            pass
        assert (tmp_path / "thesis.tex").read_text() == "years of work"


class TestTwoRunsIntoOneFolder:
    def test_the_second_run_is_refused_at_every_moment_and_writes_no_file(self, tmp_path, monkeypatch):
        out, write, moments = tmp_path / "a" / "run", paths.write_atomically, []

        def second() -> None:
            with pytest.raises(RequestError), paths.begin_run(out, {"name": "second"}):
                pass
            moments.append(sorted(part.name for part in out.iterdir()))

        def paused(file, content) -> None:
            """Another run starts after this one has looked and before it writes."""
            second()
            write(file, content)
            second()

        monkeypatch.setattr(paths, "write_atomically", paused)
        with paths.begin_run(out, {"name": "first"}):
            second()
        second()
        assert moments == [[".lock"], [".lock", "spec.yaml"], *[[".lock", "spec.yaml", "tables"]] * 2]
        assert yaml.safe_load((out / "spec.yaml").read_text()) == {"name": "first"}

    def test_a_refused_run_leaves_the_folder_to_the_next(self, tmp_path):
        out = tmp_path / "a" / "run"
        with pytest.raises(RequestError, match="no cluster"), paths.begin_run(out, {"name": "first"}):
            raise RequestError("no cluster")
        assert list(tmp_path.iterdir()) == []
        with paths.begin_run(out, {"name": "second"}):
            pass
        assert yaml.safe_load((out / "spec.yaml").read_text()) == {"name": "second"}

    def test_the_refused_one_takes_no_file_of_another(self, tmp_path):
        with pytest.raises(RequestError), paths.begin_run(tmp_path / "run", {"name": "first"}) as folder:
            (folder / "tables" / "frames").mkdir()
            (folder / "tables" / "notes.txt").write_text("mine")
            (folder / "notes.txt").write_text("mine")
            raise RequestError("no cluster")
        left = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
        assert left == ["notes.txt", "tables", "tables/notes.txt"]

    def test_a_folder_that_filled_while_it_was_locked_stays_as_it_is(self, tmp_path, monkeypatch):
        locked = paths.locked

        @contextlib.contextmanager
        def late(path):
            (path / "thesis.tex").write_text("years of work")
            with locked(path):
                yield

        monkeypatch.setattr(paths, "locked", late)
        with pytest.raises(RequestError, match="nothing in it was touched"), paths.begin_run(tmp_path, {}):
            pass
        assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_missing_gpu_is_refused(monkeypatch):
    monkeypatch.setattr("driftlab.platform.sim.host.gpus", lambda: 2)
    check_torch_device("cpu")
    check_torch_device("cuda:1")
    assert "'cuda:2' and this machine has 2 GPUs" in refusal(check_torch_device, "cuda:2")
    monkeypatch.setattr("driftlab.platform.sim.host.gpus", lambda: 0)
    assert "use cpu, or --address of a cluster that has one" in refusal(check_torch_device, "cuda")
