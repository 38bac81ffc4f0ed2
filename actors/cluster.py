"""The Ray of a run: started for it on this machine, or an existing cluster."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import secrets
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psutil
import ray
from ray import exceptions
from ray._private import services
from ray._private.authentication import authentication_token_setup
from ray._private.node import Node
from ray._raylet import GcsClient  # type: ignore[attr-defined]

from driftlab.actors.local import LocalRay
from driftlab.actors.thread import LOOK_S, RayThread
from driftlab.actors.watchdog import MARK
from driftlab.errors import RequestError, RunError, first_line
from driftlab.platform.sim import host as machine
from driftlab.platform.sim import portable

log = logging.getLogger(__name__)
T = TypeVar("T")
MIB = 2**20
STORE_BYTES = 1024 * MIB  # more is spilled to disk
PROCESS_BYTES = 200 * MIB  # measured: an actor that has imported torch
REACH_S = 3.0  # for a cluster to answer
START_S = 60.0  # for Ray to start here; measured: 4 to 10 s
GRACE_S = 5.0  # for Ray to shut down by itself; measured: 1.4 s
HARD_S = 2.0  # then to end its processes; it takes 5 s to notice, which is not waited for
LOOPBACK = "127.0.0.1"
HTTP2_SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # the frame with which every gRPC server begins
HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + HTTP2_SETTINGS
TOKEN_FILE = Path("~/.ray/auth_token")
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_IGNORE_UNHANDLED_ERRORS": "1"}
UNWATCHED = {"RAY_task_events_report_interval_ms": "0", "RAY_enable_metrics_collection": "0"}  # 3 % faster
UNUSED = (
    "start_monitor",
    "start_log_monitor",
    "start_api_server",
)  # scaling in a cloud, logs in the driver, statistics
PATIENT = {  # a busy machine lets processes wait for longer than Ray does; a dead one is noticed by its exit
    "health_check_failure_threshold": 60,
    "agent_register_timeout_ms": 180_000,
}
ALLOWED = (
    "Give HOST:PORT of the head's GCS (6379 unless it was started otherwise) or 'auto' on a machine of the cluster, "
    "or leave --address out to run on this machine alone. A cluster with authentication also needs RAY_AUTH_MODE=token "
    "and its token in RAY_AUTH_TOKEN or ~/.ray/auth_token."
)


@dataclass(frozen=True)
class ClusterConfig:
    """Location and number of a run's actors."""

    address: str | None = None  # None: this machine only, unless RAY_ADDRESS names a cluster
    workers: int | None = None  # actors of a kind; None: the number of processors
    rack: int | None = None  # maximum of devices per actor, which then sets the number of actors
    gpus_per_actor: float = 0.0  # of applications, teachers and learners
    dashboard: bool = False  # 2 s longer to start and 0.9 GB more; actors are seen there by name
    run: str = "run"  # what the dashboard calls it
    store_bytes: int = STORE_BYTES
    go_on: str = (
        "To go on: driftlab run --resume, with the folder of the run."  # for the message when the local Ray is lost
    )


@dataclass(frozen=True)
class Cluster:
    """A connection to Ray, and its resources."""

    namespace: str
    cpus: int
    gpus: float
    memory_bytes: int
    dashboard_url: str | None
    thread: RayThread | None = None
    local: LocalRay | None = None  # if it was started here

    @property
    def folder(self) -> Path | None:
        """Return the folder of a Ray that was started here."""
        return self.local.folder.path if self.local else None

    def check(self) -> None:
        """Raise if a Ray that was started here has lost an essential process."""
        if self.local is not None:
            self.local.check()

    def run(self, function: Callable[[], T], within_s: float = float("inf")) -> T:
        """Make a call that may block, and wait for it while this Ray lives; TimeoutError if it takes too long."""
        assert self.thread is not None
        return self.thread.run(function, within_s)

    def close(self) -> None:
        """Leave the cluster; a Ray that was started here ends."""
        assert self.thread is not None
        _leave(self.thread, self.local)


def connect(config: ClusterConfig) -> Cluster:
    """Start Ray on this machine, or join the requested cluster."""
    if ray.is_initialized():
        raise RequestError("This process uses Ray already; close that run first (ray.shutdown()), or start another.")
    address = config.address if config.address is not None else os.environ.get("RAY_ADDRESS", "local")
    if address == "local":
        check_gpus(config, machine.gpus())  # before Ray takes seconds to start
    local = LocalRay(config.go_on) if address == "local" else None
    thread = RayThread(local.look if local else lambda: None)
    namespace = f"driftlab-{uuid.uuid4().hex[:8]}"
    level = "ERROR" if local is None else "CRITICAL"  # errors of the start of a local Ray are raised as well
    common = {"namespace": namespace, "log_to_driver": False, "logging_level": level}
    try:
        if local is not None:
            context = _within(thread, partial(_start, local.folder.path, config, common))
        else:
            context = thread.run(partial(_join, address, common), beside=_take_signals_back)
        _take_signals_back()
        cluster = thread.run(partial(_describe, namespace, context, thread, local))
        check_gpus(config, cluster.gpus)
        if local is not None:
            local.started()
    except BaseException:
        _leave(thread, local)
        raise
    _silence(re.compile(""))
    return cluster


def _take_signals_back() -> None:
    """Replace Ray's handlers by those of before: Ray's prints a trace, and after a SIGTERM aborts within 3 s."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            if (handler := signal.getsignal(number)) is not None:
                signal.signal(number, handler)


def _within(thread: RayThread, start: Callable[[], Any]) -> Any:
    try:
        return thread.run(start, START_S, beside=_take_signals_back)  # Ray takes them some time before it has started
    except TimeoutError as error:
        raise _not_started(error) from error


def _not_started(error: Exception) -> RunError:
    return RunError(
        f"Ray did not start on this machine: {first_line(error)}. Try again when it is less busy, or leave Ray out "
        "with --backend inline."
    )


def _leave(thread: RayThread, local: LocalRay | None) -> None:
    """Shut Ray down; one that was started here and does not answer is killed."""
    at_once = local is not None and (local.lost or thread.busy)
    ended = thread.begin(ray.shutdown)
    wait([ended], 0 if at_once else GRACE_S)
    deadline = time.monotonic() + HARD_S
    while local is not None and not ended.done() and time.monotonic() < deadline:
        local.end_processes(0)
        wait([ended], LOOK_S)
    if not thread.end(LOOK_S):
        atexit.unregister(ray.shutdown)  # it would wait again at exit
    _silence(None)
    if local is not None:
        local.close()


def _silence(lines: re.Pattern[str] | None) -> None:
    """Keep Ray from printing every lost process on stdout, where a run's result belongs.

    Ray's only setting for this is an environment variable that it reads at import, for all users of the process.
    """
    with contextlib.suppress(ImportError, AttributeError):
        from ray._private import ray_logging

        printer: Any = ray_logging.stdout_deduplicator
        printer.skip_re = lines


def _start(folder: Path, config: ClusterConfig, common: dict[str, Any]) -> Any:
    """Start a local Ray with a token of its own; for its dashboard, the token is written to the usual file."""
    token_file = TOKEN_FILE.expanduser()
    own = not config.dashboard and not token_file.exists()
    _set_defaults(QUIET | ({} if config.dashboard else UNWATCHED))
    _set_defaults({"RAY_AUTH_TOKEN": secrets.token_hex(32)} if own else {})
    logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)  # it warns that there is a token
    os.environ[MARK] = str(folder)  # inherited by every process of this Ray, and by no later one
    try:
        with _kept_from_the_network(), contextlib.nullcontext() if config.dashboard else _without_unused():
            context = ray.init(
                address="local",
                num_cpus=min(config.workers or processors(), processors()),  # Ray starts a process for each
                include_dashboard=config.dashboard,
                object_store_memory=min(config.store_bytes, psutil.virtual_memory().available // 4),
                _temp_dir=str(folder),
                _node_ip_address=LOOPBACK,
                _system_config=PATIENT,
                **common,
            )
    except Exception as error:  # Ray has no class of its own for this
        raise _not_started(error) from error
    finally:
        del os.environ[MARK]
    if token_file.exists() and token_file.stat().st_uid == os.getuid():
        token_file.chmod(0o600)  # Ray leaves it readable for other users, and it opens the cluster to any code
    return context


@contextlib.contextmanager
def _kept_from_the_network() -> Iterator[None]:
    """Make Ray listen on the loopback interface only.

    On Linux, Ray replaces a loopback address by the machine's own, so that other machines could join. No
    setting prevents that, so the function that replaces it is disabled while Ray starts.
    """
    name = "resolve_ip_for_localhost"
    resolve = getattr(services, name, None)
    if resolve is None:
        log.warning("This version of Ray cannot be kept from listening on the network.")
        yield
        return
    setattr(services, name, lambda host: host)
    try:
        yield
    finally:
        setattr(services, name, resolve)


@contextlib.contextmanager
def _without_unused() -> Iterator[None]:
    """Let Ray start without processes that nothing here asks: they take 3 s of the 7 s of processor time of a start.

    Ray has no setting for them; a version that names them otherwise starts them.
    """
    starts = {name: start for name in UNUSED if (start := getattr(Node, name, None))}
    for name in starts:
        setattr(Node, name, lambda *args, **kwargs: None)
    try:
        yield
    finally:
        for name, start in starts.items():
            setattr(Node, name, start)


def _join(address: str, common: dict[str, Any]) -> Any:
    """Join a cluster, or fail within seconds with a reason."""
    _set_defaults(QUIET)
    try:
        found = _resolved(address)
        check_reachable(found)
        if address == "auto":
            _show_token()
        GcsClient(address=found)  # reports a wrong token at once; ray.init would try twenty times
        return ray.init(address=address, runtime_env={"env_vars": portable.environment()}, **common)
    except exceptions.AuthenticationError as error:
        raise RequestError(f"The Ray cluster at '{address}' refuses the token, or lacks one. {ALLOWED}") from error
    except (ConnectionError, RuntimeError, ValueError, exceptions.RayError) as error:
        raise RequestError(f"Cannot join a Ray cluster at '{address}': {first_line(error)}. {ALLOWED}") from error


def _show_token() -> None:
    """Let calls show the user's token, if there is one, as ray.init does where it protects local clusters."""
    show = getattr(authentication_token_setup, "maybe_enable_token_auth_if_token_available", None)
    if show is not None:
        show(warn_if_disabled=False)


def _resolved(address: str) -> str:
    """Resolve `auto`, as ray.init does."""
    return str(services.canonicalize_bootstrap_address_or_die(address)) if address == "auto" else address


def check_reachable(address: str) -> None:
    """Refuse an invalid address, and one without a server of Ray's kind; Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise RequestError(f"'{address}' is not an address. {ALLOWED}")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_S) as wire:
            if "RAY_USE_TLS" in os.environ:
                return
            wire.sendall(HTTP2_HELLO)
            answer = wire.recv(len(HTTP2_SETTINGS))
    except (OSError, OverflowError) as error:
        raise RequestError(f"No Ray cluster answers at '{address}' ({error}). {ALLOWED}") from error
    if answer[3:4] != HTTP2_SETTINGS[3:4]:
        raise RequestError(f"What answers at '{address}' is not a Ray cluster. {ALLOWED}")


def _describe(namespace: str, context: Any, thread: RayThread, local: LocalRay | None) -> Cluster:
    resources = ray.cluster_resources()
    free = psutil.virtual_memory().available if local is not None else int(resources.get("memory", 0))
    url = context.dashboard_url
    return Cluster(
        namespace=namespace,
        cpus=max(1, int(resources.get("CPU", 1))),
        gpus=resources.get("GPU", 0.0),
        memory_bytes=free,
        dashboard_url=f"http://{url}" if url else None,
        thread=thread,
        local=local,
    )


def check_gpus(config: ClusterConfig, gpus: float) -> None:
    """Refuse a request for which Ray would wait silently."""
    share, kinds = config.gpus_per_actor, 3  # applications, teachers and learners
    if share > 1 and share != int(share):
        raise RequestError(f"compute.gpus_per_actor is {share}: above one only whole GPUs can be had.")
    if share * kinds > gpus:
        most = int(gpus / kinds * 100) / 100
        fix = f"set it to {most} or less" if most else "leave it at 0 to compute on CPUs"
        raise RequestError(
            f"compute.gpus_per_actor is {share}: an application, a teacher and a learner together need "
            f"{share * kinds:g} GPUs, and there are {gpus:g}; {fix}."
        )


def processors() -> int:
    """Count the processors that this process may use."""
    return machine.usable_cores()


def _set_defaults(variables: Mapping[str, str]) -> None:
    """Set environment variables that the user has not set."""
    os.environ.update({name: value for name, value in variables.items() if name not in os.environ})
