"""The doctor tells what is wrong, how to mend it, and whether a run can work."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from driftlab import _torchvision
from driftlab.actors import folders
from driftlab.cli import doctor
from driftlab.cli.app import build_app
from driftlab.cli.doctor import Finding

FINE = Finding("one", "ok", "as it should be")
WORTH_KNOWING = Finding("two", "note", "worth knowing", "do this")
WRONG = Finding("three", "problem", "broken", "mend it")


def run(monkeypatch: pytest.MonkeyPatch, *findings: Finding, options: tuple[str, ...] = ()):
    monkeypatch.setattr(doctor, "PROBES", tuple(lambda finding=finding: finding for finding in findings))
    return CliRunner().invoke(build_app(), ["doctor", *options])


def test_notes_do_not_stop_a_run(monkeypatch):
    result = run(monkeypatch, FINE, WORTH_KNOWING)
    assert result.exit_code == 0
    assert "A run can work on this machine." in result.output


def test_a_problem_is_exit_code_one_with_its_cure(monkeypatch):
    result = run(monkeypatch, FINE, WRONG)
    assert result.exit_code == 1
    assert "-> mend it" in result.output
    assert "1 to mend" in result.output


def test_json_is_one_document(monkeypatch):
    result = run(monkeypatch, FINE, WRONG, options=("--json",))
    document = json.loads(result.stdout)
    assert document["ok"] is False
    assert document["findings"][1] == {"name": "three", "state": "problem", "text": "broken", "cure": "mend it"}


def test_every_probe_answers_here():
    findings = {finding.name: finding for finding in doctor.examine()}
    assert len(findings) == len(doctor.PROBES)
    assert all(finding.text for finding in findings.values())
    assert all(finding.cure for finding in findings.values() if finding.state == "problem")
    assert {findings[name].state for name in ("python", "packages", "torch", "ray", "video", "opencv")} == {"ok"}


@pytest.mark.parametrize(("module", "state"), [("torch", "problem"), ("cv2", "problem"), ("av", "problem")])
def test_a_package_that_is_not_there_is_a_problem(monkeypatch, module: str, state: str):
    monkeypatch.setitem(sys.modules, module, None)
    probe = {"torch": doctor.torch, "cv2": doctor.opencv, "av": doctor.video}[module]
    assert probe().state == state


@pytest.mark.parametrize(("found", "state"), [("works", "ok"), ("mended", "note"), ("absent", "note")])
def test_torchvision_is_never_a_problem(monkeypatch, found: str, state: str):
    monkeypatch.setattr(_torchvision, "state", lambda: found)
    finding = doctor.torchvision()
    assert finding.state == state
    assert bool(finding.cure) == (found != "works")


def test_a_torchvision_that_fails_says_why(monkeypatch):
    def fail() -> str:
        raise RuntimeError("operator torchvision::nms does not exist\nand more")

    monkeypatch.setattr(_torchvision, "state", fail)
    finding = doctor.torchvision()
    assert finding.state == "note"
    assert "operator torchvision::nms does not exist" in finding.text
    assert "and more" not in finding.text


def test_missing_and_outdated_packages_are_named_at_once(monkeypatch):
    asked = ["no-such-package>=1", "pytest>=1000", "only-for-work-on-it; extra == 'dev'"]
    monkeypatch.setattr(doctor.metadata, "requires", lambda _: asked)
    finding = doctor.packages()
    assert finding.state == "problem"
    assert "no-such-package is missing" in finding.text
    assert "pytest" in finding.text
    assert "only-for-work-on-it" not in finding.text


def test_a_folder_that_cannot_be_written_is_a_problem(monkeypatch, tmp_path: Path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("DRIFTLAB_CACHE", str(blocked / "cache"))
    finding = doctor.cache()
    assert finding.state == "problem"
    assert "DRIFTLAB_CACHE" in finding.cure


def test_looking_at_a_folder_makes_nothing(monkeypatch, tmp_path: Path):
    monkeypatch.setenv("DRIFTLAB_CACHE", str(tmp_path / "a" / "b"))
    assert doctor.cache().state == "ok"
    assert list(tmp_path.iterdir()) == []


def test_a_temporary_folder_that_does_not_suit_ray_is_noted(monkeypatch, tmp_path: Path):
    (long := tmp_path / ("x" * 100)).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as short:
        monkeypatch.setattr(folders, "SHORT", (Path(short),))
        finding = doctor.temporary()
        assert [file for file in Path(short).rglob("*") if file.parent != Path(short)] == []
    assert finding.state == "note"
    assert "too long a path" in finding.text


def test_no_place_for_rays_files_is_a_problem(monkeypatch, tmp_path: Path):
    (long := tmp_path / ("x" * 100)).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    monkeypatch.setattr(folders, "SHORT", ())
    finding = doctor.temporary()
    assert finding.state == "problem"
    assert finding.cure.startswith("Set TMPDIR to")
    assert finding.cure not in finding.text


def test_a_full_disk_is_noted(monkeypatch, tmp_path: Path):
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: SimpleNamespace(free=doctor.GIB))
    monkeypatch.chdir(tmp_path)
    assert doctor.runs().state == "note"


@pytest.mark.parametrize(("setting", "state"), [("1", "ok"), ("8", "note"), (None, "note")])
def test_threads_are_explained(monkeypatch, setting: str | None, state: str):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if setting is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", setting)
    assert doctor.threads().state == state


def test_a_cluster_in_the_environment_is_pointed_out(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    finding = doctor.ray()
    assert finding.state == "note"
    assert "10.0.0.1:6379" in finding.text


def test_a_cpu_without_avx_512_gets_advice_for_own_networks(monkeypatch):
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "AVX512")
    assert doctor.kernels() == Finding("kernels", "ok", "AVX512")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert doctor.kernels().state == "note"
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "AVX2")
    assert "make_safe(model)" in doctor.kernels().cure
