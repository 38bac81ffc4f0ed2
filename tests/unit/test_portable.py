"""The settings of portable runs: which process may compute, and how they reach it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from command_factory import run_command

from driftlab.errors import RequestError, RunError
from driftlab.platform.lab.builds import recipes_of
from driftlab.platform.lab.cells import resolved
from driftlab.platform.lab.read import load, parse
from driftlab.platform.lab.seal import run
from driftlab.platform.sim import portable

WANTED = "compute.portable=true"
ROOTS = """
import json, numpy as np, torch
from driftlab.platform.sim import portable
portable.settle()
rng, found = np.random.default_rng(0), []
for kind in (np.float32, np.float64):
    given = np.abs(rng.standard_normal((64, 64))).astype(kind)
    tensor, exact = torch.from_numpy(given), np.sqrt(given)
    changed, kept = tensor.clone(), torch.empty(0, dtype=tensor.dtype)
    torch.sqrt(tensor, out=kept)
    results = (tensor.sqrt(), changed.sqrt_(), kept, tensor.T.sqrt().T, tensor[0, 0].sqrt())
    found += [bool((one.numpy() == want).all()) for one, want in zip(results, (*[exact] * 4, exact[0, 0]))]
leaf = torch.tensor([4.0, 9.0], requires_grad=True)
leaf.sqrt().sum().backward()
half = torch.tensor([4.0], dtype=torch.bfloat16).sqrt()
whole = torch.tensor([4]).sqrt()
undefined = torch.tensor([-1.0]).sqrt().isnan().item()
process = torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()
print(json.dumps([found, leaf.grad.tolist(), str(half.dtype), str(whole.dtype), undefined, *process]))
"""


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Pretend that this machine can, and that this process was started without the settings."""
    monkeypatch.setattr(portable, "lacking", lambda: "")
    for name in portable.SETTINGS:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def run_python(code: str, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = {**{name: value for name, value in os.environ.items() if name not in portable.SETTINGS}, **settings}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.skipif(bool(portable.lacking()), reason=portable.lacking())
def test_a_process_that_was_started_with_the_settings_takes_exact_roots():
    done = run_python(ROOTS, **portable.SETTINGS)
    assert done.stderr == ""
    roots, gradient, half, whole, undefined, capability, threads = json.loads(done.stdout)
    assert roots == [True] * 10
    assert gradient == [1 / 4, pytest.approx(1 / 6)]
    assert (half, whole, undefined) == ("torch.bfloat16", "torch.float32", True)
    assert (capability, threads) == ("AVX2", 1)


@pytest.mark.skipif(bool(portable.lacking()), reason=portable.lacking())
@pytest.mark.parametrize("late", [{}, dict(portable.SETTINGS)])
def test_settings_that_come_after_the_start_do_not_count(here, late):
    for name, value in late.items():
        here.setenv(name, value)
    with pytest.raises(RequestError, match=r"started without its settings.*driftlab run --portable.*MKL_CBWR='COMPAT"):
        portable.check(True)


def test_the_public_function_refuses_and_makes_no_folder(here, tmp_path):
    with pytest.raises(RequestError, match="started without its settings"):
        run("quick", [WANTED], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_that_is_not_to_be_portable_is_not_computed_as_one(here):
    here.setenv(portable.MARK, "1")
    with pytest.raises(RequestError, match="DRIFTLAB_PORTABLE is set"):
        portable.check(False)


def test_a_worker_without_the_settings_refuses(here):
    portable.settle()  # of a run that is not portable
    here.setenv(portable.MARK, "1")
    with pytest.raises(RunError, match="a worker was started without"):
        portable.settle()


def test_a_processor_that_cannot_is_named(here):
    here.undo()
    here.setattr(portable.platform, "machine", lambda: "x86_64")
    here.setattr(portable, "_flags", lambda: ["sse2", "fma"])
    with pytest.raises(RequestError, match="a processor with avx2 and fma, and this one lacks avx2"):
        portable.check(True)
    here.setattr(portable.platform, "machine", lambda: "aarch64")
    with pytest.raises(RequestError, match="needs Linux on x86-64"):
        portable.check(True)


@pytest.mark.parametrize(
    "words",
    [("run", "quick", "--portable"), ("run", "quick", "--set", WANTED), ("demo", "--act", "scaling", "--portable")],
)
def test_the_command_restarts_itself_with_the_settings(here, tmp_path, words):
    started = []

    def execute(command, variables):
        started.append((command, variables))
        raise SystemExit(7)

    here.setattr(portable, "_execute", execute)
    result = run_command([*words, "--out", str(tmp_path / "run")])
    assert result.exit_code == 7
    ((command, variables),) = started
    assert command == [sys.executable, *sys.orig_argv[1:]]
    assert variables.items() >= portable.SETTINGS.items()
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_search_restarts_itself_too(here, tmp_path):
    here.setattr(portable, "_execute", lambda command, variables: sys.exit(7))
    result = run_command(["tune", "ams", "--portable", "--out", str(tmp_path / "run")])
    assert (result.exit_code, (tmp_path / "run").exists()) == (7, False)


def test_the_spec_records_portable_runs_only():
    assert resolved(load("quick", [WANTED]))["compute"]["portable"] is True
    assert "portable" not in resolved(load("quick"))["compute"]
    assert parse(resolved(load("quick", [WANTED]))).compute.portable


def test_networks_of_portable_runs_are_kept_apart():
    assert recipes_of(load("quick")).keys().isdisjoint(recipes_of(load("quick", [WANTED])))


def test_a_gpu_is_refused():
    with pytest.raises(RequestError, match="true and compute\\.torch_device is 'cuda'"):
        load("quick", [WANTED, "compute.torch_device=cuda"])


def test_workers_elsewhere_get_the_settings(here):
    assert portable.environment() == {}
    here.setenv(portable.MARK, "1")
    assert portable.environment() == portable.SETTINGS
