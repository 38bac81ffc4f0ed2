"""`driftlab doctor`: what this machine has, what is missing, how to mend it."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Literal

import typer

from driftlab import _torchvision
from driftlab.cli.output import print_columns, print_json, say
from driftlab.errors import RequestError, first_line

GIB = 2**30
TIGHT_MEMORY_GIB = 4  # Ray and two workers with torch take about two
TIGHT_DISK_GIB = 2
INSTALL = "install driftlab again: make setup, in the checkout"
BROKEN = (ImportError, OSError, RuntimeError, AttributeError)  # what a damaged or mismatched package raises at import


@dataclass(frozen=True)
class Finding:
    """One line of the diagnosis; only a problem stops a run."""

    name: str
    state: Literal["ok", "note", "problem"]
    text: str
    cure: str = ""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(short_help="Say what this machine has, what is missing, how to mend it.")(doctor)


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False) -> None:
    """Say what this machine has, what is missing and how to mend it; exit code 1 if a run cannot work."""
    findings = examine()
    problems = [finding for finding in findings if finding.state == "problem"]
    if as_json:
        print_json({"ok": not problems, "findings": [asdict(finding) for finding in findings]})
    else:
        _print_findings(findings)
        say()
        say(f"{len(problems)} to mend before a run can work." if problems else "A run can work on this machine.")
    raise typer.Exit(1 if problems else 0)


def examine() -> list[Finding]:
    """Look at everything a run touches."""
    return [probe() for probe in PROBES]


def _print_findings(findings: list[Finding]) -> None:
    rows: list[tuple[str, str, str]] = []
    for finding in findings:
        rows.append((finding.state, finding.name, finding.text))
        if finding.cure:
            rows.append(("", "", f"-> {finding.cure}"))
    print_columns(rows)


def python() -> Finding:
    """Which Python runs this."""
    text = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {sys.executable}"
    return Finding("python", "ok", text)


def packages() -> Finding:
    """Whether everything that driftlab asks for is installed in a version it can use."""
    from packaging.requirements import Requirement

    asked = [Requirement(line) for line in metadata.requires("driftlab") or ()]
    needed = [one for one in asked if one.marker is None or one.marker.evaluate({"extra": ""})]
    faults = [fault for one in needed if (fault := _package_fault(one.name, one.specifier.contains))]
    if faults:
        return Finding("packages", "problem", "; ".join(faults), INSTALL)
    return Finding("packages", "ok", f"all {len(needed)} that driftlab asks for")


def _package_fault(name: str, fits: Callable[[str, bool], bool]) -> str:
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return f"{name} is missing"
    return "" if fits(version, True) else f"{name} {version} is outside the range driftlab supports"


def cores() -> Finding:
    """How many processors this process may use."""
    from driftlab.platform.sim.host import usable_cores

    usable = usable_cores()
    if usable == 1:
        return Finding("cores", "note", "1: cells of a grid run one after the other")
    return Finding("cores", "ok", str(usable))


def memory() -> Finding:
    """How much memory is free."""
    import psutil

    found = psutil.virtual_memory()
    text = f"{found.available / GIB:.1f} GiB free of {found.total / GIB:.1f} GiB"
    if found.available < TIGHT_MEMORY_GIB * GIB:
        return Finding("memory", "note", text, "run with --backend inline, or with --workers 1")
    return Finding("memory", "ok", text)


def threads() -> Finding:
    """How many threads torch takes inside one operator."""
    setting = os.environ.get("OMP_NUM_THREADS")
    if setting == "1":
        return Finding("threads", "ok", "one inside an operator (OMP_NUM_THREADS=1)")
    given = "OMP_NUM_THREADS is not set" if setting is None else f"OMP_NUM_THREADS={setting}"
    cure = "export OMP_NUM_THREADS=1 for notebooks and scripts of your own"
    return Finding("threads", "note", f"{given}; driftlab's workers use one thread each all the same", cure)


def torch() -> Finding:
    """Whether torch imports, and what it was built for."""
    try:
        import torch
    except BROKEN as error:
        return Finding("torch", "problem", f"does not import: {first_line(error)}", INSTALL)
    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
    return Finding("torch", "ok", f"{torch.__version__}, built for {built}")


def kernels() -> Finding:
    """Name the instruction set of torch's kernels, and its consequence for the user's networks."""
    try:
        from torch.backends.cpu import get_cpu_capability

        from driftlab.platform.networks.strided import NARROW
    except BROKEN as error:
        return Finding("kernels", "note", f"cannot look: {first_line(error)}", INSTALL)
    found = get_cpu_capability()
    if not NARROW or (found.startswith("AVX512") and os.environ.get("ONEDNN_MAX_CPU_ISA", found).startswith("AVX512")):
        return Finding("kernels", "ok", found)
    text = (
        f"{found} without AVX-512: torch writes beyond its memory when it trains a strided 1x1 convolution of fewer "
        f"than {NARROW} channels; driftlab gives it a safe form in every network that it builds, cuts, trains or runs"
    )
    cure = "before a training loop of your own: driftlab.platform.networks.strided.make_safe(model)"
    return Finding("kernels", "note", text, cure)


def torchvision() -> Finding:
    """Whether torchvision imports, by itself or with the missing operators supplied."""
    cure = "install the torchvision that was released with this torch"
    without = "its own models (DeepLabV3) are unavailable, everything else works"
    try:
        state = _torchvision.state()
    except BROKEN as error:
        return Finding("torchvision", "note", f"does not import ({first_line(error)}): {without}", cure)
    if state == "absent":
        return Finding("torchvision", "note", f"not installed: {without}", cure)
    version = metadata.version("torchvision")
    if state == "mended":
        text = f"{version}: its compiled library does not fit this torch, driftlab supplies the missing operators"
        return Finding("torchvision", "note", text, "none needed: driftlab reads images with Pillow, OpenCV and PyAV")
    return Finding("torchvision", "ok", version)


def ray() -> Finding:
    """Whether Ray is there, and whether runs would join a cluster."""
    try:
        version = metadata.version("ray")
    except metadata.PackageNotFoundError:
        return Finding("ray", "problem", "not installed; only --backend inline works", INSTALL)
    address = os.environ.get("RAY_ADDRESS")
    if address:
        return Finding("ray", "note", f"{version}; RAY_ADDRESS={address}", "unset RAY_ADDRESS to stay on this machine")
    return Finding("ray", "ok", version)


def gpu() -> Finding:
    """How many NVIDIA GPUs there are, or why none is seen."""
    try:
        import pynvml
    except BROKEN as error:
        return Finding("gpu", "note", f"cannot look: {first_line(error)}", INSTALL)
    try:
        pynvml.nvmlInit()
        names = [pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(_gpu_count(pynvml))]
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return Finding("gpu", "note", f"none ({error}); everything runs on the CPU")
    return Finding("gpu", "ok" if names else "note", ", ".join(names) or "none; everything runs on the CPU")


def _gpu_count(nvml: object) -> int:
    return int(nvml.nvmlDeviceGetCount())  # type: ignore[attr-defined]


def video() -> Finding:
    """Whether H.264 can be written, which is how frames are sent."""
    try:
        import av

        av.codec.Codec("libx264", "w")
    except (*BROKEN, ValueError) as error:
        return Finding("video", "problem", f"PyAV cannot encode H.264: {first_line(error)}", "pip install -U av")
    return Finding("video", "ok", f"PyAV {av.__version__} with libx264")


def opencv() -> Finding:
    """Whether OpenCV imports, which draws the streets."""
    try:
        import cv2
    except BROKEN as error:
        cure = "pip uninstall opencv-python; pip install --force-reinstall opencv-python-headless"
        return Finding("opencv", "problem", f"does not import: {first_line(error)}", cure)
    return Finding("opencv", "ok", str(cv2.__version__))


def cache() -> Finding:
    """Whether built artefacts can be kept."""
    from driftlab.platform.networks.training.artifacts import FOLDER_VARIABLE, cache_folder

    return _folder("cache", cache_folder(), f"set {FOLDER_VARIABLE} to a folder that can be written")


def temporary() -> Finding:
    """Find a place for Ray's files, by making a folder and removing it again."""
    from driftlab.actors.folders import ADVICE, open_folder

    try:
        folder = open_folder()
    except RequestError as error:
        return Finding("temporary", "problem", str(error).removesuffix(f" {ADVICE}"), ADVICE)
    folder.remove()
    if folder.moved:
        return Finding("temporary", "note", folder.moved, "none needed")
    return Finding("temporary", "ok", f"Ray's files are in {folder.path.parent}")


def runs() -> Finding:
    """Whether a run can be written below the current folder."""
    return _folder("runs", Path("runs").absolute(), "go to a folder that can be written, or give --out DIR")


def energy() -> Finding:
    """Whether joules can be measured."""
    counters = sorted(Path("/sys/class/powercap").glob("*/energy_uj"))
    if not counters:
        return Finding("energy", "note", "no RAPL counters: joules are modelled, and marked so")
    if not os.access(counters[0], os.R_OK):
        text = "RAPL counters are there and only root may read them: joules are modelled, and marked so"
        return Finding("energy", "note", text, f"sudo chmod a+r {counters[0]}")
    return Finding("energy", "ok", f"{len(counters)} RAPL counters")


def _folder(name: str, path: Path, cure: str) -> Finding:
    """Judge a folder by its nearest existing parent: looking must not create anything."""
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return Finding(name, "problem", f"{path} cannot be written", cure)
    free = shutil.disk_usage(existing).free
    text = f"{path}, {free / GIB:.1f} GiB free"
    if free < TIGHT_DISK_GIB * GIB:
        return Finding(name, "note", text, cure)
    return Finding(name, "ok", text)


PROBES: tuple[Callable[[], Finding], ...] = (
    python,
    packages,
    cores,
    memory,
    threads,
    torch,
    kernels,
    torchvision,
    ray,
    gpu,
    video,
    opencv,
    cache,
    temporary,
    runs,
    energy,
)
