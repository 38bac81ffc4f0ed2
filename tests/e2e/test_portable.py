"""Portable runs: this host computes the recorded bytes, with any default of its libraries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import portable_factory as factory
import pytest

from driftlab.platform.sim.portable import SETTINGS, lacking

CHOICES = {  # settings of the environment before the flag
    "AVX2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "OPENBLAS_CORETYPE": "Haswell"},
    "AVX-512": {
        "ATEN_CPU_CAPABILITY": "avx512",
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE",
        "OPENBLAS_CORETYPE": "SkylakeX",
        "MKL_CBWR": "AVX2",
        "OMP_NUM_THREADS": "2",
    },
}


@pytest.mark.slow
@pytest.mark.skipif(bool(lacking()), reason=lacking())
@pytest.mark.parametrize("choice", sorted(CHOICES))
def test_ten_cells_equal_the_stored_ones(choice: str, tmp_path: Path):
    stored = json.loads(factory.STORED.read_text(encoding="utf-8"))
    if stored["versions"] != factory.versions():
        pytest.skip(f"the digests were stored with {stored['versions']}, here are {factory.versions()}")
    plain = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    environment = {**plain, **CHOICES[choice], "DRIFTLAB_CACHE": str(tmp_path)}
    command = [sys.executable, factory.__file__, "print"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert len(found["digests"]) == 10
    unequal = factory.differences(found["digests"], stored["digests"])
    assert unequal == [], f"stored with {stored['libc']}, here is {found['libc']}"
