"""Settings of the numerical libraries for equal bytes on every x86-64 processor with AVX2 and FMA.

Libraries read most of them while they load, so the environment of a process must hold them from its start.
"""

from __future__ import annotations

import os
import platform
import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from driftlab.errors import RequestError, RunError

if TYPE_CHECKING:
    import torch

MARK = "DRIFTLAB_PORTABLE"
SETTINGS: Mapping[str, str] = {
    MARK: "1",  # tells a process that it was started with all of these
    "ATEN_CPU_CAPABILITY": "avx2",  # PyTorch: longer vectors add in another order
    "ONEDNN_MAX_CPU_ISA": "AVX2",  # oneDNN, PyTorch's convolutions: likewise
    "MKL_CBWR": "COMPATIBLE",  # MKL, PyTorch's matrix products, exp and log: the one mode that AMD's processors share
    "OPENBLAS_CORETYPE": "Haswell",  # OpenBLAS, the matrix products of NumPy and SciPy
    "NPY_DISABLE_CPU_FEATURES": (  # NumPy: its functions differ in last bits, its sorts in the order of equals
        "X86_V3 X86_V4 AVX512_ICL AVX512_SPR "
        "AVX2 FMA3 AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL"  # names before NumPy 2.4
    ),
    "OPENCV_IPP": "avx2",  # IPP, which OpenCV's wheels contain
    "OMP_NUM_THREADS": "1",  # PyTorch and oneDNN: each number of threads adds in another order
    "MKL_NUM_THREADS": "1",  # MKL: likewise
    "OPENBLAS_NUM_THREADS": "1",  # OpenBLAS: likewise
    "OPENCV_FOR_THREADS_NUM": "1",  # OpenCV: likewise
}
NEEDED = ("avx2", "fma")  # in every x86-64 processor for PCs and servers since about 2015


def lacking() -> str:
    """Return the reason why this machine cannot compute portably, or an empty text."""
    if platform.machine() != "x86_64" or sys.platform != "linux":
        return f"it needs Linux on x86-64, and this is {platform.system()} on {platform.machine()}"
    found = set(_flags())
    missing = [name for name in NEEDED if name not in found]
    return (
        f"it needs a processor with {' and '.join(NEEDED)}, and this one lacks {', '.join(missing)}" if missing else ""
    )


def restart(wanted: bool) -> None:
    """Restart this command with the settings if a portable run was started without them."""
    if wanted and not lacking() and not _started():
        sys.stdout.flush()
        sys.stderr.flush()
        _execute([sys.executable, *sys.orig_argv[1:]], {**os.environ, **SETTINGS})


def check(wanted: bool) -> None:
    """Refuse a run whose settings differ from those of this process."""
    if wanted and (reason := lacking()):
        raise RequestError(f"compute.portable is true; {reason}. Leave it out.")
    if wanted and not _started():
        settings = " ".join(f"{name}='{value}'" for name, value in SETTINGS.items())
        raise RequestError(
            "compute.portable is true, and this process was started without its settings, which libraries read while "
            f"they load. Use `driftlab run --portable`, or start Python with: env {settings}"
        )
    if not wanted and os.environ.get(MARK):
        raise RequestError(
            f"compute.portable is false, and {MARK} is set; unset it with the settings that it came with, or set "
            "compute.portable=true."
        )


def settle() -> None:
    """Complete the settings in a process that was started with them, before it computes anything."""
    if not os.environ.get(MARK):
        return
    if reason := lacking():
        raise RunError(f"compute.portable is true; {reason}. Use machines that have it.")
    if not _started():
        raise RunError("compute.portable is true, and a worker was started without its settings.")
    _take_exact_roots()


def environment() -> dict[str, str]:
    """Return the variables for processes on other machines; empty if this process is not portable."""
    return dict(SETTINGS) if os.environ.get(MARK) else {}


def _started() -> bool:
    """Return whether this process was started with all settings in its environment."""
    given = set(Path("/proc/self/environ").read_bytes().split(b"\0"))
    return all(
        f"{name}={value}".encode() in given and os.environ.get(name) == value for name, value in SETTINGS.items()
    )


def _flags() -> list[str]:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("flags"):
                return line.partition(":")[2].split()
    return []


def _execute(command: list[str], variables: Mapping[str, str]) -> NoReturn:
    os.execve(command[0], command, dict(variables))


@cache
def _take_exact_roots() -> torch.library.Library:
    """Compute PyTorch's square roots on the CPU with NumPy, which rounds exactly, and keep denormals.

    PyTorch leaves them to MKL, which begins from an instruction (rsqrtps) whose result differs between processors; no
    setting changes that, and a sixth of its roots was measured to be off by a bit. Adam takes a root in every step.
    """
    import numpy as np
    import torch

    def root(given: torch.Tensor) -> torch.Tensor:
        kind = given.dtype if given.is_floating_point() else torch.get_default_dtype()
        wide = given.detach().to(kind if kind in (torch.float32, torch.float64) else torch.float32)
        with np.errstate(invalid="ignore"):
            return torch.from_numpy(np.asarray(np.sqrt(wide.numpy()))).to(kind)

    torch.set_flush_denormal(False)
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators", UserWarning)  # that one is replaced
        library.impl("sqrt", root, "CPU")
        library.impl("sqrt_", lambda given: given.copy_(root(given)), "CPU")
        library.impl("sqrt.out", lambda given, *, out: out.resize_(given.shape).copy_(root(given)), "CPU")
    return library
