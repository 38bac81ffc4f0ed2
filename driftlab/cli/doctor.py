"""`driftlab doctor`: check Python, packages, memory and disk, and print a fix for each problem."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Annotated, Literal

import typer

from driftlab import _torchvision
from driftlab.cli.output import count, print_columns, print_json, say
from driftlab.errors import RequestError, first_line

GIB = 2**30
TIGHT_MEMORY_GIB = 4  # Ray and two workers with torch take about two
TIGHT_DISK_GIB = 2
INSTALL = "install driftlab again: make setup, in the checkout"
BROKEN = (ImportError, OSError, RuntimeError, AttributeError)  # raised at import by a damaged or mismatched package


@dataclass(frozen=True)
class Finding:
    """The result of one check; only a problem prevents runs."""

    name: str
    state: Literal["ok", "note", "problem"]
    text: str
    fix: str = ""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(short_help="Check this computer and print a fix for each problem.")(doctor)


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False) -> None:
    """Check Python, packages, memory and disk, and print a fix for each problem.

    The exit code is 1 if runs cannot work.
    """
    findings = examine()
    problems = [finding for finding in findings if finding.state == "problem"]
    if as_json:
        print_json({"ok": not problems, "findings": [asdict(finding) for finding in findings]})
    else:
        _print_findings(findings)
        say()
        say(f"{count(len(problems), 'problem')} to fix before runs can work." if problems else "Runs can work here.")
    raise typer.Exit(1 if problems else 0)


def examine() -> list[Finding]:
    """Run all checks."""
    return [probe() for probe in PROBES]


def _print_findings(findings: list[Finding]) -> None:
    rows: list[tuple[str, str, str]] = []
    for finding in findings:
        rows.append((finding.state, finding.name, finding.text))
        if finding.fix:
            rows.append(("", "", f"-> {finding.fix}"))
    print_columns(rows)


def python() -> Finding:
    """Return version and path of Python."""
    text = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {sys.executable}"
    return Finding("python", "ok", text)


def packages() -> Finding:
    """Check that all required packages are installed in a supported version."""
    from packaging.requirements import Requirement

    listed = [Requirement(line) for line in metadata.requires("driftlab") or ()]
    required = [one for one in listed if one.marker is None or one.marker.evaluate({"extra": ""})]
    faults = [fault for one in required if (fault := _package_fault(one.name, one.specifier.contains))]
    if faults:
        return Finding("packages", "problem", "; ".join(faults), INSTALL)
    return Finding("packages", "ok", f"all {len(required)} required packages")


def _package_fault(name: str, fits: Callable[[str, bool], bool]) -> str:
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return f"{name} is missing"
    return "" if fits(version, True) else f"{name} {version} is not a supported version"


def cores() -> Finding:
    """Return the number of CPU cores that this process may use."""
    from driftlab.platform.sim.host import usable_cores

    usable = usable_cores()
    if usable == 1:
        return Finding("cores", "note", "1: cells run sequentially")
    return Finding("cores", "ok", str(usable))


def memory() -> Finding:
    """Check the free memory."""
    import psutil

    usage = psutil.virtual_memory()
    text = f"{usage.available / GIB:.1f} GiB free of {usage.total / GIB:.1f} GiB"
    if usage.available < TIGHT_MEMORY_GIB * GIB:
        return Finding("memory", "note", text, "run with --backend inline, or with --workers 1")
    return Finding("memory", "ok", text)


def threads() -> Finding:
    """Return the number of threads that torch uses within an operator."""
    setting = os.environ.get("OMP_NUM_THREADS")
    if setting == "1":
        return Finding("threads", "ok", "one per operator (OMP_NUM_THREADS=1)")
    current = "OMP_NUM_THREADS is not set" if setting is None else f"OMP_NUM_THREADS={setting}"
    fix = "export OMP_NUM_THREADS=1 for notebooks and other scripts"
    return Finding("threads", "note", f"{current}; driftlab's workers always use one thread each", fix)


def torch() -> Finding:
    """Check that torch can be imported; return its version and build."""
    try:
        import torch
    except BROKEN as error:
        return Finding("torch", "problem", f"cannot be imported: {first_line(error)}", INSTALL)
    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
    return Finding("torch", "ok", f"{torch.__version__}, built for {built}")


def kernels() -> Finding:
    """Return the instruction set of torch's kernels, and its consequence for networks outside driftlab."""
    try:
        from torch.backends.cpu import get_cpu_capability

        from driftlab.platform.networks.strided import NARROW
    except BROKEN as error:
        return Finding("kernels", "note", f"unknown: {first_line(error)}", INSTALL)
    isa = get_cpu_capability()
    if not NARROW or (isa.startswith("AVX512") and os.environ.get("ONEDNN_MAX_CPU_ISA", isa).startswith("AVX512")):
        return Finding("kernels", "ok", isa)
    text = (
        f"{isa} without AVX-512: torch writes out of bounds when it trains a strided 1x1 convolution of fewer "
        f"than {NARROW} channels; driftlab replaces such convolutions by an equal safe form in all its networks"
    )
    fix = "in other training loops: driftlab.platform.networks.strided.make_safe(model)"
    return Finding("kernels", "note", text, fix)


def torchvision() -> Finding:
    """Check that torchvision can be imported, unchanged or with operators that driftlab defines."""
    fix = "install the torchvision that was released with this torch"
    without = "its models (DeepLabV3) are unavailable, everything else works"
    try:
        with _late_compiler():
            state = _torchvision.state()
    except BROKEN as error:
        return Finding("torchvision", "note", f"cannot be imported ({first_line(error)}): {without}", fix)
    if state == "absent":
        return Finding("torchvision", "note", f"not installed: {without}", fix)
    version = metadata.version("torchvision")
    if state == "mended":
        text = f"{version}: its compiled library does not load with this torch; driftlab defines the missing operators"
        return Finding("torchvision", "note", text, "none needed: driftlab reads images with Pillow, OpenCV and PyAV")
    return Finding("torchvision", "ok", version)


@contextmanager
def _late_compiler() -> Iterator[None]:
    """Delay torchvision's import of torch's compiler, which takes three seconds, until it calls it."""
    names = ("torch._dynamo", "torch._dynamo.utils")
    stand_ins = {name: ModuleType(name) for name in names if name not in sys.modules}
    for one in stand_ins.values():
        one.__dict__["is_compile_supported"] = lambda device: import_module(names[1]).is_compile_supported(device)
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name in stand_ins:
            del sys.modules[name]


def ray() -> Finding:
    """Check that Ray is installed, and whether runs would join a cluster."""
    try:
        version = metadata.version("ray")
    except metadata.PackageNotFoundError:
        return Finding("ray", "problem", "not installed; only --backend inline works", INSTALL)
    address = os.environ.get("RAY_ADDRESS")
    if address:
        return Finding("ray", "note", f"{version}; RAY_ADDRESS={address}", "unset RAY_ADDRESS to run on this computer")
    if find_spec("rfc3987_syntax") is not None:  # of 1 s of processor time that `import ray` takes; measured
        text = f"{version}; its processes start 0.8 s later: they import rfc3987_syntax, which JupyterLab requires"
        return Finding("ray", "note", text, "install JupyterLab in another environment, as `make notebook` does")
    return Finding("ray", "ok", version)


def gpu() -> Finding:
    """Return the NVIDIA GPUs, or the reason why none is available."""
    try:
        import pynvml
    except BROKEN as error:
        return Finding("gpu", "note", f"unknown: {first_line(error)}", INSTALL)
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
    """Check that H.264 can be encoded, the codec of uploads."""
    try:
        import av

        av.codec.Codec("libx264", "w")
    except (*BROKEN, ValueError) as error:
        return Finding("video", "problem", f"PyAV cannot encode H.264: {first_line(error)}", "pip install -U av")
    return Finding("video", "ok", f"PyAV {av.__version__} with libx264")


def opencv() -> Finding:
    """Check that OpenCV can be imported, which renders streets."""
    try:
        import cv2
    except BROKEN as error:
        fix = "pip uninstall opencv-python; pip install --force-reinstall opencv-python-headless"
        return Finding("opencv", "problem", f"cannot be imported: {first_line(error)}", fix)
    return Finding("opencv", "ok", str(cv2.__version__))


def cache() -> Finding:
    """Check that the cache of trained networks is writable."""
    from driftlab.platform.networks.training.states import FOLDER_VARIABLE, cache_folder

    return _check_folder("cache", cache_folder(), f"set {FOLDER_VARIABLE} to a writable folder")


def temporary() -> Finding:
    """Check that there is a suitable place for Ray's files, by creating and deleting a folder."""
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
    """Check that runs can be written to the current folder."""
    return _check_folder("runs", Path("runs").absolute(), "change to a writable folder, or use --out DIR")


def energy() -> Finding:
    """Check whether energy can be measured."""
    counters = sorted(Path("/sys/class/powercap").glob("*/energy_uj"))
    if not counters:
        return Finding("energy", "note", "no RAPL counters: energy is estimated and marked as such")
    if not os.access(counters[0], os.R_OK):
        text = "only root can read the RAPL counters: energy is estimated and marked as such"
        return Finding("energy", "note", text, f"sudo chmod a+r {counters[0]}")
    return Finding("energy", "ok", f"{len(counters)} RAPL counters")


def _check_folder(name: str, path: Path, fix: str) -> Finding:
    """Check that a folder is writable, by its nearest existing parent: a check must not create it."""
    from driftlab.platform.core.files import is_writable

    if not is_writable(path):
        return Finding(name, "problem", f"{path} is not writable", fix)
    free = shutil.disk_usage(next(folder for folder in (path, *path.parents) if folder.exists())).free
    text = f"{path}, {free / GIB:.1f} GiB free"
    if free < TIGHT_DISK_GIB * GIB:
        return Finding(name, "note", text, fix)
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
