"""Members from outside: found by file or package, checked, and found again in another process."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from driftlab.errors import RequestError
from driftlab.platform.core.registry import Member, member_class, parameters
from driftlab.platform.core.spec import SystemPart
from driftlab.platform.lab.cells import system_of
from driftlab.platform.lab.sets import expand_system
from driftlab.platform.scheduling.base import Demand, Grant, SchedulerInput

GOOD = """
from __future__ import annotations

from dataclasses import dataclass

from driftlab.platform.scheduling.base import Allocation, Grant, Scheduling, SchedulerInput


@dataclass(frozen=True)
class Note:
    text: str = ""


@dataclass(frozen=True)
class First(Scheduling):
    \"\"\"Give the machine to whoever asked first.\"\"\"

    share: float = 1.0

    def faults(self) -> list[str]:
        return [] if 0 < self.share <= 1 else [f"'share' is {self.share}, must be in (0, 1]"]

    def allocate(self, window: SchedulerInput) -> Allocation:
        return Allocation((Grant(self.share),) + (Grant(0.0),) * (len(window.demands) - 1))
"""
WINDOW = SchedulerInput(0.0, 10.0, 1, (Demand("a", 1.0, ()), Demand("b", 1.0, ())))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "with a dot.and %41" / "first.py"
    path.parent.mkdir()
    path.write_text(GOOD)
    return path


def refused(family: str, name: str) -> str:
    with pytest.raises(RequestError) as error:
        member_class(family, name)
    return str(error.value)


def written(tmp_path: Path, text: str, *, before: str = "", after: str = "") -> str:
    path = tmp_path / "mine.py"
    path.write_text(text.replace(before, after) if before else text)
    return f"{path}:First"


def test_a_class_in_a_file_is_a_member(file: Path):
    member = Member("scheduling", f"{file}:First", (("share", 1),)).make()
    assert member.allocate(WINDOW).grants == (Grant(1.0), Grant(0.0))
    assert parameters(type(member)) == {"share": (float, 1.0)}


def test_its_parameters_are_checked_like_those_of_any_member(file: Path):
    with pytest.raises(RequestError, match="did you mean 'share'"):
        Member("scheduling", f"{file}:First", (("shar", 1.0),)).make()
    with pytest.raises(RequestError, match=r"must be in \(0, 1\]"):
        Member("scheduling", f"{file}:First", (("share", 2.0),)).make()


def test_a_path_is_made_whole_where_the_request_is_read(file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(file.parent)
    member = Member("scheduling", "first.py:First")
    monkeypatch.chdir("/")
    assert member.name == f"{file}:First"
    assert member.make().share == 1.0


def test_tables_do_not_contain_the_path_of_the_file(file: Path):
    assert str(Member("scheduling", f"{file}:First", (("share", 0.5),))) == "first.py:First(share=0.5)"


def test_one_file_is_one_class_however_it_is_reached(file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(file.parent)
    assert member_class("scheduling", "./first.py:First") is member_class("scheduling", f"{file}:First")


def test_a_class_in_a_package_is_a_member():
    from driftlab.platform.scheduling.uniform import Uniform

    assert member_class("scheduling", "driftlab.platform.scheduling.uniform:Uniform") is Uniform


@pytest.mark.slow
def test_another_process_unpickles_classes_of_the_file(file: Path):
    """A worker receives such a value as an argument or checkpoint, before any request for the member."""
    cls = member_class("scheduling", f"{file}:First")
    note = sys.modules[cls.__module__].Note("from afar")
    code = (
        "import pickle, sys; import driftlab.platform.core.registry; print(pickle.loads(sys.stdin.buffer.read()).text)"
    )
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(note), capture_output=True, check=False)
    assert done.stdout.decode().strip() == "from afar", done.stderr.decode()


def test_a_system_takes_it(file: Path):
    part = expand_system({"name": "mine", "scheduling": {"name": f"{file}:First", "share": 0.5}})
    system = system_of(SystemPart.model_validate(part))
    assert system.scheduling.make().share == 0.5


def test_a_mapping_without_a_name_changes_the_member_of_the_base():
    part = expand_system({"name": "mine", "base": "one_time", "adaptation": {"batch": 2}})
    assert part["adaptation"] == {"name": "distill", "fraction": 1.0, "batch": 2}
    assert "name" not in expand_system({"name": "mine", "adaptation": {"batch": 2}})["adaptation"]


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("(Scheduling)", "", ["must be a subclass of driftlab.platform.scheduling.base.Scheduling"]),
        ("@dataclass(frozen=True)", "@dataclass", ["@dataclass(frozen=True)"]),
        ("@dataclass(frozen=True)", "", ["@dataclass(frozen=True)"]),
        ("def allocate", "def alocate", ["it lacks allocate"]),
        ("self, window: S", "self, window, now_s: S", ["allocate(self, window, now_s) must be allocate(self, window)"]),
        ("self, window: SchedulerInput", "self", ["allocate(self) must be allocate(self, window)"]),
        ("share: float = 1.0", "share: float", ["every parameter needs a default: share"]),
        ("Allocation((", "Allocation(((", ["cannot import it", "SyntaxError", "mine.py"]),
        ("share: float = 1.0", "share: float = 1.0 / 0", ["cannot import it, line 18", "ZeroDivisionError"]),
        ("share: float = 1.0", "share: float = exit('bye')", ["cannot import it, line 18", "SystemExit: bye"]),
        ("class First", "class Furst", ["Unknown class 'First'", "Did you mean 'Furst'?", "Known: Furst, Note"]),
    ],
)
def test_a_class_that_is_no_member_is_refused_with_the_reason(
    tmp_path: Path, before: str, after: str, words: list[str]
):
    message = refused("scheduling", written(tmp_path, GOOD, before=before, after=after))
    assert [word for word in [*words, str(tmp_path / "mine.py")] if word not in message] == []


ADAPTATION = """
from dataclasses import dataclass
from driftlab.platform.adaptation.base import Adaptation

@dataclass(frozen=True)
class First(Adaptation):
    labels = "none"

    def prepare(self, model, pack, *, go_on=None): ...

    def adapt(self, *arguments): ...

    def reset(self, model, state): ...
"""


def test_methods_may_have_other_names_and_defaults_of_arguments(tmp_path: Path):
    member = Member("adaptation", written(tmp_path, ADAPTATION))
    assert member.make().stream_batch == 32
    with pytest.raises(RequestError, match=r"'stream_batch' .*to set it, declare the field 'stream_batch: int = 32'"):
        replace(member, params=(("stream_batch", 8),)).make()


def test_a_parameter_that_is_declared_again_keeps_its_range(tmp_path: Path):
    labels = '    labels = "none"\n'
    member = Member("adaptation", written(tmp_path, ADAPTATION.replace(labels, f"    stream_batch: int = 3\n{labels}")))
    assert member.make().stream_batch == 3
    with pytest.raises(RequestError, match=r"'stream_batch' is -1, must be in \[1, 4096\]"):
        replace(member, params=(("stream_batch", -1),)).make()


def test_an_argument_by_name_is_required(tmp_path: Path):
    name = written(tmp_path, ADAPTATION, before=", *, go_on=None", after="=None")
    assert "prepare(self, model, pack=None) must be prepare(self, model, pack=..., *, go_on=None)" in refused(
        "adaptation", name
    )


def test_a_base_requires_its_declarations(tmp_path: Path):
    text = (
        "from dataclasses import dataclass\n"
        "from driftlab.platform.streaming.local import Local\n"
        "from driftlab.platform.streaming.base import Streaming\n"
        "@dataclass(frozen=True)\n"
        "class First(Streaming):\n"
        "    start, plan_uplink, plan_downlink = Local.start, Local.plan_uplink, Local.plan_downlink\n"
    )
    assert "it must say feeds_learner, True or False" in refused("streaming", written(tmp_path, text))


def test_a_missing_file_is_refused_with_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    message = refused("scheduling", "mine/none.py:First")
    assert f"there is no file '{tmp_path / 'mine/none.py'}'" in message
    assert "folder where driftlab is started" in message


def test_a_file_without_a_class_is_refused_with_the_missing_part(file: Path):
    assert "name the class in it too" in refused("scheduling", str(file))


def test_a_missing_package_is_refused_with_its_name():
    assert "No module named 'no_such_package'" in refused("scheduling", "no_such_package.member:First")


def test_a_member_of_another_family_is_refused(file: Path):
    assert "must be a subclass of driftlab.platform.streaming.base.Streaming" in refused("streaming", f"{file}:First")
