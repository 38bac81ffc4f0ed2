"""A CPU without AVX-512 runs networks and cells with oneDNN's AVX2 kernels, under a memory checker."""

from __future__ import annotations

import ctypes.util
import json
import os
import subprocess
import sys
from typing import Any

import narrow_cpu
import pytest
import torch
import yaml

from driftlab.platform.networks.architectures import build
from driftlab.platform.networks.strided import Conv1x1Strided
from driftlab.platform.networks.zoo import ZOO

pytestmark = pytest.mark.slow
CHECKER = "libc_malloc_debug.so.0"  # of glibc 2.34 and later; older ones check without it
LARGE = ("resnext29", "resnext29_2x64d", "vgg16", "wrn_28_10", "yolov3", "vit_small")  # each takes seconds
SIGNS = {"name": "signs/depot", "duration_s": 4, "fps": 4, "height": 24, "width": 24}
RESIDUAL = {"network": "tiny_residual", "pretrain_steps": 5}
NESTED = {"name": "nested", "keep_ratios": [1.0, 0.25], "accuracy_loss": 1.0, "prune_epochs": 0, "grow_epochs": 1}
STREAMED, DISTILLED = {"name": "ams", "interval_s": 2}, {"name": "distill", "iterations": 2}
PHASES = {"name": "on_device", "period_s": 2, "rate_fps": 4}
SHARING = {"name": "nestdnn", "alpha": 1.0}
ELASTIC = {"name": "elasticdnn", "iterations": 2}
CELLS: dict[str, dict[str, Any]] = {  # one of each family, on networks with narrow shortcuts
    "streaming": {"systems": [{"name": "ams", "scaling": NESTED, "streaming": STREAMED, "adaptation": DISTILLED}]},
    "adaptation": {"systems": [{"name": "elasticdnn", "streaming": PHASES, "adaptation": ELASTIC}]},
    "scaling": {
        "systems": [{"name": "adascale", "scaling": {"name": "adascale", "stage_epochs": 1}}],
        "student": {"network": "tiny_staged", "pretrain_steps": 5},
        "workloads": [{**SIGNS, "height": 32, "width": 32, "apps": [{"name": "vc", "latency_goal_s": 0.15}]}],
    },
    "scheduling": {
        "systems": [{"name": "nestdnn", "scaling": NESTED, "scheduling": {"name": "nestdnn", "alpha": 1.0}}]
    },
}


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Run each part as on a CPU without AVX-512; return its output if it failed, else an empty text."""
    folder = tmp_path_factory.mktemp("narrow")
    files = [folder / f"{family}.yaml" for family in CELLS]
    for file in files:
        document = {"name": file.stem, "workloads": [SIGNS], "student": RESIDUAL, "bounds": False, **CELLS[file.stem]}
        file.write_text(yaml.safe_dump(document), encoding="utf-8")
    networks = [name for name in ZOO if name not in LARGE]
    parts = [["networks", *networks], ["layers"], ["run", *map(str, files)]]
    checked = {"LD_PRELOAD": CHECKER, "MALLOC_CHECK_": "3"} if ctypes.util.find_library("c_malloc_debug") else {}
    narrow = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, narrow_cpu.__file__, json.dumps(parts)]
    done = subprocess.run(command, env={**os.environ, **narrow, **checked}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ended = zip(parts, map(json.loads, done.stdout.splitlines()), strict=True)
    return {part[0]: f"exit code {code} in {output[-2000:]}" if code else "" for part, (output, code) in ended}


def test_every_network_predicts_and_trains(faults: dict[str, str]):
    assert not faults["networks"]


def test_large_networks_have_no_part_that_needs_a_safe_form():
    with torch.device("meta"):
        built = {name: build(name, 5, seed=0) for name in LARGE}
    parts = {name: {type(part) for part in model.modules()} for name, model in built.items()}
    assert [name for name, types in parts.items() if Conv1x1Strided in types] == []


def test_parts_with_few_channels_train(faults: dict[str, str]):
    assert not faults["layers"]


def test_a_cell_of_each_family_runs(faults: dict[str, str]):
    assert not faults["run"]
