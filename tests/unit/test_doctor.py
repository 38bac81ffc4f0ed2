"""The doctor lists problems with fixes, and whether runs can work."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_factory import run_command

from driftlab import _torchvision
from driftlab.actors import folders
from driftlab.cli import doctor
from driftlab.cli.doctor import Finding

FINE = Finding("one", "ok", "as it should be")
WORTH_KNOWING = Finding("two", "note", "worth knowing", "do this")
WRONG = Finding("three", "problem", "broken", "repair it")


def run(monkeypatch: pytest.MonkeyPatch, *findings: Finding, options: tuple[str, ...] = ()):
    monkeypatch.setattr(doctor, "PROBES", tuple(lambda finding=finding: finding for finding in findings))
    return run_command(["doctor", *options])


def test_notes_do_not_prevent_runs(monkeypatch):
    result = run(monkeypatch, FINE, WORTH_KNOWING)
    assert result.exit_code == 0
    assert "Runs can work here." in result.output


def test_a_problem_gives_exit_code_one_and_a_fix(monkeypatch):
    result = run(monkeypatch, FINE, WRONG)
    assert result.exit_code == 1
    assert "-> repair it" in result.output
    assert "1 problem to fix before runs can work." in result.output


def test_json_is_one_document(monkeypatch):
    result = run(monkeypatch, FINE, WRONG, options=("--json",))
    document = json.loads(result.stdout)
    assert document["ok"] is False
    assert document["findings"][1] == {"name": "three", "state": "problem", "text": "broken", "fix": "repair it"}


def test_every_check_returns_a_finding():
    findings = {finding.name: finding for finding in doctor.examine()}
    assert len(findings) == len(doctor.PROBES)
    assert all(finding.text for finding in findings.values())
    assert all(finding.fix for finding in findings.values() if finding.state == "problem")
    assert {findings[name].state for name in ("python", "packages", "torch", "ray", "video", "opencv")} == {"ok"}


@pytest.mark.parametrize(("module", "state"), [("torch", "problem"), ("cv2", "problem"), ("av", "problem")])
def test_a_missing_package_is_a_problem(monkeypatch, module: str, state: str):
    monkeypatch.setitem(sys.modules, module, None)
    probe = {"torch": doctor.torch, "cv2": doctor.opencv, "av": doctor.video}[module]
    assert probe().state == state


@pytest.mark.parametrize(("found", "state"), [("works", "ok"), ("mended", "note"), ("absent", "note")])
def test_torchvision_is_never_a_problem(monkeypatch, found: str, state: str):
    monkeypatch.setattr(_torchvision, "state", lambda: found)
    finding = doctor.torchvision()
    assert finding.state == state
    assert bool(finding.fix) == (found != "works")


def test_a_broken_torchvision_gives_the_reason(monkeypatch):
    def fail() -> str:
        raise RuntimeError("operator torchvision::nms does not exist\nand more")

    monkeypatch.setattr(_torchvision, "state", fail)
    finding = doctor.torchvision()
    assert finding.state == "note"
    assert "operator torchvision::nms does not exist" in finding.text
    assert "and more" not in finding.text


def test_missing_and_outdated_packages_are_listed_together(monkeypatch):
    asked = ["no-such-package>=1", "pytest>=1000", "only-for-work-on-it; extra == 'dev'"]
    monkeypatch.setattr(doctor.metadata, "requires", lambda _: asked)
    finding = doctor.packages()
    assert finding.state == "problem"
    assert "no-such-package is missing" in finding.text
    assert "pytest" in finding.text
    assert "only-for-work-on-it" not in finding.text


def test_an_unwritable_folder_is_a_problem(monkeypatch, tmp_path: Path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("DRIFTLAB_CACHE", str(blocked / "cache"))
    finding = doctor.cache()
    assert finding.state == "problem"
    assert "DRIFTLAB_CACHE" in finding.fix


def test_checking_a_folder_does_not_create_it(monkeypatch, tmp_path: Path):
    monkeypatch.setenv("DRIFTLAB_CACHE", str(tmp_path / "a" / "b"))
    assert doctor.cache().state == "ok"
    assert list(tmp_path.iterdir()) == []


def test_an_unsuitable_temporary_folder_is_noted(monkeypatch, tmp_path: Path):
    (long := tmp_path / ("x" * 100)).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as short:
        monkeypatch.setattr(folders, "SHORT", (Path(short),))
        finding = doctor.temporary()
        assert [file for file in Path(short).rglob("*") if file.parent != Path(short)] == []
    assert finding.state == "note"
    assert "too long a path" in finding.text


def test_a_missing_folder_for_rays_files_is_a_problem(monkeypatch, tmp_path: Path):
    (long := tmp_path / ("x" * 100)).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    monkeypatch.setattr(folders, "SHORT", ())
    finding = doctor.temporary()
    assert finding.state == "problem"
    assert finding.fix.startswith("Set TMPDIR to")
    assert finding.fix not in finding.text


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


def test_a_cluster_in_the_environment_is_noted(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    finding = doctor.ray()
    assert finding.state == "note"
    assert "10.0.0.1:6379" in finding.text


def test_a_package_that_delays_ray_is_noted(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    assert doctor.ray().state == "ok"
    monkeypatch.setattr(doctor, "find_spec", lambda name: object())
    finding = doctor.ray()
    assert finding.state == "note"
    assert "JupyterLab" in finding.fix


def test_a_cpu_without_avx_512_gives_advice_for_other_networks(monkeypatch):
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "AVX512")
    assert doctor.kernels() == Finding("kernels", "ok", "AVX512")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert doctor.kernels().state == "note"
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "AVX2")
    assert "make_safe(model)" in doctor.kernels().fix
