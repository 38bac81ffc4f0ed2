"""The folders of Ray's sessions: private, and deleted only if driftlab made them and its run ended."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from types import SimpleNamespace

import pytest

from driftlab.actors import folders, watchdog
from driftlab.errors import RequestError

pytestmark = pytest.mark.waits

HOLD = (
    "import sys, tempfile\nfrom driftlab.actors import folders\ntempfile.tempdir = sys.argv[1]\n"
    "print(folders.open_folder().path, flush=True)\nsys.stdin.read()\n"
)


@pytest.fixture(autouse=True)
def place(monkeypatch):
    """A temporary folder with a path short enough for Ray, and no other place."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as place:
        monkeypatch.setattr(tempfile, "tempdir", place)
        monkeypatch.setattr(folders, "SHORT", ())
        yield folders.Path(place)


@pytest.fixture
def parent(place):
    return place / f"driftlab-{os.getuid()}"


def test_each_session_has_a_private_folder(place, parent):
    first, second = folders.open_folder(), folders.open_folder()
    assert first.path != second.path
    assert {first.path.parent, second.path.parent} == {parent}
    assert [path.stat().st_mode & 0o777 for path in (parent, first.path)] == [0o700, 0o700]
    assert len(first.path.name) == len(folders.NAME)
    assert first.moved == ""
    for folder in (first, second):
        folder.remove()
    assert list(parent.iterdir()) == []


def test_the_folder_of_a_run_is_deleted_only_after_it_was_killed(place):
    command = [sys.executable, "-c", HOLD, str(place)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        theirs = folders.Path(owner.stdout.readline().strip())
        try:
            folders.open_folder().remove()
            assert theirs.is_dir()
        finally:
            owner.kill()
            owner.wait()
    assert (theirs / folders.MARKER).is_file()
    mine = folders.open_folder()
    assert not theirs.exists()
    mine.remove()


@pytest.mark.parametrize("name", ["dl999999-photos", "dl999999999-x", "photos"])
def test_files_of_other_programs_are_not_deleted(place, parent, name):
    parent.mkdir(mode=0o700)
    photos = [folder / name / "a.jpg" for folder in (place, parent)]
    for photo in photos:
        photo.parent.mkdir()
        photo.touch()
    folders.open_folder().remove()
    assert all(photo.is_file() for photo in photos)


@pytest.mark.parametrize("kind", ["link to a session", "link to a marker", "pipe", "folder"])
def test_folders_without_a_regular_marker_are_not_deleted(place, parent, kind):
    parent.mkdir(mode=0o700)
    home, looks = place / "home", parent / "session"
    home.mkdir()
    (home / folders.MARKER).touch()
    (home / "a.jpg").touch()
    if kind == "link to a session":
        looks.symlink_to(home)
    else:
        looks.mkdir()
        marker = looks / folders.MARKER
        {
            "link to a marker": lambda: marker.symlink_to(home / folders.MARKER),
            "pipe": lambda: os.mkfifo(marker),
            "folder": marker.mkdir,
        }[kind]()
    folders.open_folder().remove()
    assert looks.exists()
    assert (home / "a.jpg").is_file()


@pytest.mark.parametrize("kind", ["link", "file"])
def test_a_parent_that_is_no_private_folder_is_refused(place, parent, kind):
    (place / "home").mkdir()
    parent.symlink_to(place / "home") if kind == "link" else parent.touch()
    with pytest.raises(RequestError, match=f"its '{parent.name}' is no folder.*Set TMPDIR to"):
        folders.open_folder()
    assert list((place / "home").iterdir()) == []


def test_a_parent_of_another_user_is_refused(place, parent, monkeypatch):
    user = os.getuid() + 1
    parent.with_name(f"driftlab-{user}").mkdir()
    monkeypatch.setattr(os, "getuid", lambda: user)
    with pytest.raises(RequestError, match="a folder of another user"):
        folders.open_folder()


def test_an_open_parent_is_made_private(place, parent):
    parent.mkdir()
    parent.chmod(0o777)
    folders.open_folder().remove()
    assert parent.stat().st_mode & 0o777 == 0o700


@pytest.fixture
def short(place, monkeypatch):
    """Another place that is suitable for Ray's files."""
    with tempfile.TemporaryDirectory(prefix="s", dir="/tmp") as short:
        monkeypatch.setattr(folders, "SHORT", (folders.Path(short),))
        yield folders.Path(short)


def spoil(place, kind):
    """Return a temporary folder that is unsuitable for Ray's files."""
    if kind == "a file":
        (place / kind).touch()
    else:
        (place / kind).mkdir()
    if kind == "linked":
        (place / kind / f"driftlab-{os.getuid()}").symlink_to(place)
    return place / kind


UNFIT = {
    "x" * 24: "too long a path",
    "x" * 200: "too long a path",
    "ünï": "ASCII",
    "linked": "is no folder",
    "a file": "Not a directory",
}


@pytest.mark.parametrize(("kind", "why"), UNFIT.items(), ids=["24", "200", *list(UNFIT)[2:]])
def test_an_unsuitable_temporary_folder_is_replaced(place, short, monkeypatch, kind, why):
    unfit = spoil(place, kind)
    held = sorted(place.rglob("*"))
    monkeypatch.setattr(tempfile, "tempdir", str(unfit))
    folder = folders.open_folder()
    assert folder.path.parent == short / f"driftlab-{os.getuid()}"
    assert folder.path.parent.stat().st_mode & 0o777 == 0o700
    assert f"'{unfit}' cannot hold them" in folder.moved
    assert why in folder.moved
    folder.remove()
    assert list(folder.path.parent.iterdir()) == []
    assert sorted(place.rglob("*")) == held


@pytest.mark.parametrize(("kind", "why"), UNFIT.items(), ids=["24", "200", *list(UNFIT)[2:]])
def test_the_error_for_unsuitable_places_has_reason_and_fix(place, monkeypatch, kind, why):
    monkeypatch.setattr(tempfile, "tempdir", str(spoil(place, kind)))
    monkeypatch.setattr(folders, "SHORT", (folders.Path("/proc"),))
    with pytest.raises(RequestError, match=f"{why}.*'/proc' cannot hold them .*Set TMPDIR to"):
        folders.open_folder()


def test_a_missing_temporary_folder_is_replaced(short, monkeypatch):
    def refuse():
        raise FileNotFoundError("none is usable")

    monkeypatch.setattr(tempfile, "gettempdir", refuse)
    folder = folders.open_folder()
    assert folder.path.parent.parent == short
    folder.remove()


def test_the_next_run_deletes_the_moved_folder_of_a_killed_run(place, short, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(spoil(place, "x" * 24)))
    killed = folders.open_folder()
    os.close(killed.lock)  # as the kernel does
    folder = folders.open_folder()
    assert list(folder.path.parent.iterdir()) == [folder.path]
    folder.remove()


def test_a_marker_is_locked_before_its_renaming(monkeypatch):
    """Otherwise another run could delete the folder between the two steps."""
    named = []
    rename = folders.Path.rename

    def watched(path, target):
        with path.open() as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        named.append(target)
        return rename(path, target)

    monkeypatch.setattr(folders.Path, "rename", watched)
    folder = folders.open_folder()
    assert named == [folder.path / folders.MARKER]
    folder.remove()


def test_only_the_processes_of_a_session_are_ended(place):
    """As after a Ctrl-C that ended the head of a Ray before its child processes."""
    mine, other = place / "mine", place / "other"
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    orphans = [subprocess.Popen(command, env={watchdog.MARK: str(folder)}) for folder in (mine, other)]
    mine.mkdir()
    try:
        folders.remove_session(mine, leave_s=0.2)
        orphans[0].wait(10)  # it would sleep for longer; its exit status may have been reaped already
        assert orphans[1].poll() is None
        assert not mine.exists()
    finally:
        for orphan in orphans:
            orphan.kill()
            orphan.wait()


class TestWatchdog:
    @pytest.mark.parametrize(
        ("written", "printed"),
        [
            (b"one\ntwo\n", b"two\n"),
            (b"one\n\n", b""),
            (b"", b""),
            (b"to r\xc3\xban, r\xfan\n", b"to r\xc3\xban, r\xfan\n"),
        ],
    )
    def test_the_watchdog_ends_the_session_after_its_driver(self, place, written, printed):
        sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
        orphan = subprocess.Popen(sleeper, env={watchdog.MARK: str(place)})
        try:
            guard = subprocess.run(
                [sys.executable, watchdog.__file__, str(place)],
                input=written,
                capture_output=True,
                timeout=30,
                check=True,
            )
            assert (guard.stdout, guard.stderr) == (b"", printed)
            assert orphan.wait(10) == -9
        finally:
            orphan.kill()
            orphan.wait()


@pytest.mark.parametrize(("name", "belongs"), [(folders.MARKER, False), ("session_1/logs/agent.log", True)])
def test_a_process_without_an_environment_belongs_by_its_log_files_only(name, belongs):
    """A process title overwrites the environment; a process that deletes a folder must not end itself."""
    opened = [SimpleNamespace(path=f"/tmp/driftlab-1/a/{name}")]
    process = SimpleNamespace(environ=dict, open_files=lambda: opened)
    assert watchdog._belongs(process, "/tmp/driftlab-1/a") == belongs


def test_the_current_process_is_excluded_from_a_session(place, monkeypatch):
    """A driver with a process title has no readable environment, and has log files of the session open."""
    monkeypatch.setattr(watchdog.psutil.Process, "environ", lambda process: {})
    with (place / "driver.log").open("w"):
        assert watchdog._belongs(watchdog.psutil.Process(), str(place))
        assert watchdog.processes_of(str(place)) == []
