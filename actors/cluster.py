"""Connect to Ray: start it on this computer for a run, or join an existing cluster."""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import os
import re
import secrets
import signal
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import wait
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import psutil
import ray
from ray import exceptions
from ray._private import services
from ray._private.authentication import authentication_token_setup
from ray._private.node import Node
from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.job_config import JobConfig

from driftlab import determinism
from driftlab.actors.local import LocalRay
from driftlab.actors.thread import POLL_INTERVAL_S, RayThread, wait_for_abandoned
from driftlab.actors.watchdog import MARK
from driftlab.errors import RequestError, RunError, first_line
from driftlab.platform.sim import host, portable

log = logging.getLogger(__name__)
T = TypeVar("T")
MIB = 2**20
STORE_BYTES = 1024 * MIB  # of the object store; the rest is written to disk
PROCESS_BYTES = 200 * MIB  # measured: an actor that has imported torch
CONNECT_TIMEOUT_S = 3.0  # for a cluster to reply
START_TIMEOUT_S = 60.0  # for a local Ray to start; measured: 4 to 10 s
SHUTDOWN_TIMEOUT_S = 5.0  # for Ray to shut down by itself; measured: 1.4 s
KILL_TIMEOUT_S = 2.0  # then for its killed processes to end; Ray notices after 5 s, which is too long to wait
LOOPBACK = "127.0.0.1"
HTTP2_SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # the first frame of every gRPC server
HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + HTTP2_SETTINGS
TOKEN_FILE = Path("~/.ray/auth_token")
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_IGNORE_UNHANDLED_ERRORS": "1"}
# With one heap for all threads glibc keeps freed blocks of up to `HEAP_BYTES` of sim/host.py. If each has a heap,
# empty parts of it go back to the system: to bring them back took a server a tenth of the time of a large image.
ONE_HEAP = {"MALLOC_ARENA_MAX": "1"}
# Ray would use 15, with which two workers were slower than two processes that Ray does not start.
USUAL_PRIORITY = {"RAY_worker_niceness": "0"}
UNWATCHED = {"RAY_task_events_report_interval_ms": "0", "RAY_enable_metrics_collection": "0"}  # saves 3 % of the time
UNUSED = (
    "start_monitor",
    "start_log_monitor",
    "start_api_server",
)  # autoscaling in a cloud, logs in the driver, statistics
AGENT_OF = ("2.60.",)  # versions of Ray whose agent `agent.py` replaces; others start their own
PATIENT = {  # on a busy computer Ray's own limits are too short; a process that ends is noticed by its exit
    "health_check_failure_threshold": 60,
    "agent_register_timeout_ms": 180_000,
}
ALLOWED = (
    "Give HOST:PORT of the head's GCS (its default port is 6379), or 'auto' on a computer of the cluster, "
    "or leave --address out to use this computer only. A cluster with authentication also requires "
    "RAY_AUTH_MODE=token and its token in RAY_AUTH_TOKEN or ~/.ray/auth_token."
)


@dataclass(frozen=True)
class ClusterConfig:
    """The cluster of a run, and the number and resources of its actors."""

    address: str | None = None  # None: this computer only, unless RAY_ADDRESS names a cluster
    workers: int | None = None  # maximum of actors of a kind; None: the number of CPU cores
    devices_per_actor: int | None = None  # maximum of devices per actor; it replaces the limit by `workers`
    gpus_per_actor: float = 0.0  # for each application, teacher and learner, or each actor of whole cells
    on_gpu: bool = False  # whether they get equal shares of the cluster's GPUs if `gpus_per_actor` is 0
    torch_device: str = "cpu"  # of their networks
    placement: Literal["cells", "nodes"] = "nodes"  # of a cell: in one actor, or its nodes in actors of their kinds
    dashboard: bool = False  # takes 2 s and 0.9 GB more; shows actors by name
    run: str = "run"  # name of the run in the dashboard
    store_bytes: int = STORE_BYTES
    sources: Mapping[str, bytes] = field(default_factory=dict)  # users' files, by path
    go_on: str = (
        "To go on: driftlab run --resume, with the folder of the run."  # appended to the error when Ray is lost
    )


@dataclass(frozen=True)
class Cluster:
    """A connection to Ray, and its resources."""

    namespace: str
    cpus: int
    gpus: float
    memory_bytes: int
    dashboard_url: str | None
    metrics_url: str | None = None  # of the processes on this computer, as text for Prometheus
    thread: RayThread | None = None
    local: LocalRay | None = None  # None: an existing cluster

    @property
    def folder(self) -> Path | None:
        """Return the folder of a local Ray; None for a cluster."""
        return self.local.folder.path if self.local else None

    def check(self) -> None:
        """Raise BackendLost if a local Ray has lost an essential process."""
        if self.local is not None:
            self.local.check()

    def run(self, function: Callable[[], T], within_s: float = float("inf")) -> T:
        """Return the result of a call that may block; raise TimeoutError after `within_s`."""
        assert self.thread is not None
        return self.thread.run(function, within_s)

    def close(self) -> None:
        """Disconnect from the cluster; shut down a local Ray."""
        assert self.thread is not None
        _leave(self.thread, self.local)


def connect(config: ClusterConfig) -> Cluster:
    """Start Ray on this computer, or join the requested cluster."""
    if not wait_for_abandoned(START_TIMEOUT_S):  # its end would shut down the Ray that starts here
        raise _not_started(TimeoutError(f"an earlier Ray of this process has not ended within {START_TIMEOUT_S:g} s"))
    if ray.is_initialized():
        raise RequestError("This process uses Ray already. Call ray.shutdown() first, or use another process.")
    address = config.address if config.address is not None else os.environ.get("RAY_ADDRESS", "local")
    if address == "local":
        check_gpus(config, host.gpus())  # before Ray takes seconds to start
    local = LocalRay(config.go_on) if address == "local" else None
    thread = RayThread(local.find_heads if local else lambda: None)
    namespace = f"{config.run}-{uuid.uuid4().hex[:8]}"  # the dashboard shows it; actors of two runs differ in it
    level = "ERROR" if local is None else "CRITICAL"  # a local Ray raises the errors of its start, no need to log them
    job = JobConfig(metadata={"run": config.run})  # the dashboard shows it
    common = {"namespace": namespace, "job_config": job, "log_to_driver": False, "logging_level": level}
    try:
        if local is not None:
            context = _start_in_time(thread, partial(_start, local.folder.path, config, common))
        else:
            context = thread.run(partial(_join, address, common), meanwhile=_restore_signals)
        _restore_signals()
        cluster = thread.run(partial(_describe, namespace, context, thread, local))
        check_gpus(config, cluster.gpus)
        if local is not None:
            local.started()
    except BaseException:
        _leave(thread, local)
        raise
    _silence(re.compile(""))
    return cluster


def _restore_signals() -> None:
    """Restore Python's signal handlers: Ray's prints a trace, and aborts 3 s after a SIGTERM."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            if (handler := signal.getsignal(number)) is not None:
                signal.signal(number, handler)


def _start_in_time(thread: RayThread, start: Callable[[], Any]) -> Any:
    try:
        return thread.run(start, START_TIMEOUT_S, meanwhile=_restore_signals)  # Ray replaces them during its start
    except TimeoutError as error:
        raise _not_started(error) from error


def _not_started(error: Exception) -> RunError:
    return RunError(
        f"Ray did not start on this machine: {first_line(error)}. Try again when it is less busy, or run without Ray: "
        "--backend inline."
    )


def _leave(thread: RayThread, local: LocalRay | None) -> None:
    """Shut Ray down; kill the processes of a local Ray that does not shut down in time."""
    kill_now = local is not None and (local.lost or thread.busy)
    ended = thread.begin(ray.shutdown)
    wait([ended], 0 if kill_now else SHUTDOWN_TIMEOUT_S)
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while local is not None and not ended.done() and time.monotonic() < deadline:
        local.end_processes(0)
        wait([ended], POLL_INTERVAL_S)
    if not thread.end(POLL_INTERVAL_S):
        atexit.unregister(ray.shutdown)  # it would block again at exit
    _silence(None)
    if local is not None:
        local.close()


def _silence(lines: re.Pattern[str] | None) -> None:
    """Stop Ray from printing lines that match a pattern on stdout, which is for the result of a run.

    Ray's only setting for this is an environment variable that it reads at import.
    """
    with contextlib.suppress(ImportError, AttributeError):
        from ray._private import ray_logging

        printer: Any = ray_logging.stdout_deduplicator
        printer.skip_re = lines


def _start(folder: Path, config: ClusterConfig, common: dict[str, Any]) -> Any:
    """Start a local Ray with a new token; with a dashboard, Ray uses the token file of the user."""
    token_file = TOKEN_FILE.expanduser()
    new_token = not config.dashboard and not token_file.exists()
    _set_defaults(QUIET | ONE_HEAP | USUAL_PRIORITY)
    _set_defaults({"RAY_AUTH_TOKEN": secrets.token_hex(32)} if new_token else {})
    logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)  # it warns that a token exists
    os.environ[MARK] = str(folder)  # inherited by the processes of this Ray only: deleted after the start
    try:
        with _loopback_only(), contextlib.nullcontext() if config.dashboard else unwatched():
            context = ray.init(
                address="local",
                num_cpus=min(config.workers or processors(), processors()),  # Ray starts one process per CPU
                include_dashboard=config.dashboard,
                object_store_memory=min(config.store_bytes, psutil.virtual_memory().available // 4),
                _temp_dir=str(folder),
                _node_ip_address=LOOPBACK,
                _system_config=PATIENT,
                **common,
            )
    except Exception as error:  # Ray raises no specific class
        raise _not_started(error) from error
    finally:
        del os.environ[MARK]
    if token_file.exists() and token_file.stat().st_uid == os.getuid():
        token_file.chmod(0o600)  # Ray makes it readable for all users; with it they could run code on the cluster
    return context


@contextlib.contextmanager
def _loopback_only() -> Iterator[None]:
    """Make Ray listen on the loopback interface only.

    On Linux, Ray replaces a loopback address by the address on the network, so that other computers can join. No
    setting prevents that, so the function that replaces it is disabled while Ray starts.
    """
    name = "resolve_ip_for_localhost"
    resolve = getattr(services, name, None)
    if resolve is None:
        log.warning("This version of Ray listens on all network interfaces. Use a firewall.")
        yield
        return
    setattr(services, name, lambda host: host)
    try:
        yield
    finally:
        setattr(services, name, resolve)


@contextlib.contextmanager
def unwatched() -> Iterator[None]:
    """Start Ray without the processes and reports that only a dashboard needs.

    The processes take 4 s of 7 s of processor time, and Ray has no setting for them. A version of Ray with other names
    of these functions starts them. The variables are deleted afterwards: a later Ray of this process may have a
    dashboard.
    """
    starts = {name: start for name in UNUSED if (start := getattr(Node, name, None))}
    for name in starts:
        setattr(Node, name, lambda *args, **kwargs: None)
    start_process = services.start_ray_process
    if ray.__version__.startswith(AGENT_OF):
        services.start_ray_process = lambda command, *args, **named: start_process(
            [*map(_without_agent, command)], *args, **named
        )
    given = {name: value for name, value in UNWATCHED.items() if name not in os.environ}
    os.environ.update(given)
    try:
        yield
    finally:
        for name in given:
            del os.environ[name]
        for name, start in starts.items():
            setattr(Node, name, start)
        services.start_ray_process = start_process


def _without_agent(word: str) -> str:
    """Replace the dashboard agent in a word of a command of Ray."""
    files = Path(services.RAY_PATH) / "dashboard/agent.py", Path(__file__).with_name("agent.py")
    theirs, ours = (subprocess.list2cmdline([str(file)]) for file in files)  # as a command writes them
    return word.replace(theirs, ours, 1) if word.startswith("--dashboard_agent_command=") else word


def _join(address: str, common: dict[str, Any]) -> Any:
    """Join a cluster; raise RequestError within seconds if that is not possible."""
    _set_defaults(QUIET)
    try:
        resolved = _resolve(address)
        check_reachable(resolved)
        if address == "auto":
            _use_token()
        variables = portable.environment() | determinism.environment()
        GcsClient(address=resolved)  # reports a wrong token immediately; ray.init would try twenty times
        return ray.init(address=address, runtime_env={"env_vars": variables}, **common)
    except exceptions.AuthenticationError as error:
        raise RequestError(f"The Ray cluster at '{address}' refuses the token, or lacks one. {ALLOWED}") from error
    except (ConnectionError, RuntimeError, ValueError, exceptions.RayError) as error:
        raise RequestError(f"Cannot join a Ray cluster at '{address}': {first_line(error)}. {ALLOWED}") from error


def _use_token() -> None:
    """Send the user's token, if any, with every call, as ray.init does for protected local clusters."""
    enable = getattr(authentication_token_setup, "maybe_enable_token_auth_if_token_available", None)
    if enable is not None:
        enable(warn_if_disabled=False)


def _resolve(address: str) -> str:
    """Return the address that `auto` stands for in ray.init; other addresses are unchanged."""
    return str(services.canonicalize_bootstrap_address_or_die(address)) if address == "auto" else address


def check_reachable(address: str) -> None:
    """Raise RequestError for an address without a gRPC server; Ray itself would try for minutes."""
    name, _, port = address.rpartition(":")
    if not name or not port.isdigit() or "/" in name:
        raise RequestError(f"'{address}' is not an address. {ALLOWED}")
    try:
        with socket.create_connection((name.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_S) as connection:
            if "RAY_USE_TLS" in os.environ:
                return
            connection.sendall(HTTP2_HELLO)
            reply = connection.recv(len(HTTP2_SETTINGS))
    except (OSError, OverflowError) as error:
        raise RequestError(f"No Ray cluster responds at '{address}' ({error}). {ALLOWED}") from error
    if reply[3:4] != HTTP2_SETTINGS[3:4]:
        raise RequestError(f"The server at '{address}' is not a Ray cluster. {ALLOWED}")


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
        metrics_url=_metrics_url(),
        thread=thread,
        local=local,
    )


def _metrics_url() -> str | None:
    """Return the address of the metrics of this computer's Ray; None if Ray exports none."""
    here = ray.get_runtime_context().get_node_id()
    node: dict[str, Any] = next((one for one in ray.nodes() if one["NodeID"] == here), {})
    port = node.get("MetricsExportPort")
    return f"http://{node['NodeManagerAddress']}:{port}/metrics" if port else None


def dashboard_notes(cluster: Cluster) -> tuple[str, ...]:
    """Describe where the dashboard is, how to reach it from another computer, and where its metrics are."""
    if cluster.dashboard_url is None:
        return ("dashboard  this cluster has none",)
    name, _, port = cluster.dashboard_url.removeprefix("http://").rpartition(":")
    return (
        f"dashboard  {cluster.dashboard_url}; it requires the token that `ray get-auth-token` prints",
        f"           from another computer: ssh -L {port}:{name}:{port} {socket.gethostname()}, then "
        f"http://127.0.0.1:{port}",
        *([f"metrics    {cluster.metrics_url}"] if cluster.metrics_url else []),
    )


def check_gpus(config: ClusterConfig, gpus: float) -> None:
    """Raise RequestError if the GPUs do not suffice: Ray would wait without a message."""
    whole = config.placement == "cells"
    share, kinds = config.gpus_per_actor, 1 if whole else 3
    users = "a cell needs" if whole else "an application, a teacher and a learner together need"
    if share > 1 and share != int(share):
        raise RequestError(f"compute.gpus_per_actor is {share}: above 1 it must be a whole number.")
    if share * kinds > gpus:
        limit = int(gpus / kinds * 100) / 100
        fix = f"Set it to {limit} or less" if limit else "Leave it at 0 to compute on CPUs"
        raise RequestError(
            f"compute.gpus_per_actor is {share}: {users} {share * kinds:g} GPUs, and there are {gpus:g}. {fix}."
        )


def gpu_share(gpus: float, actors: int) -> float:
    """Return the share of a GPU with which so many actors use all GPUs; at most one each."""
    return min(1.0, math.floor(gpus / actors * 1000) / 1000)


def processors() -> int:
    """Return the number of CPU cores that this process may use."""
    return host.usable_cores()


def _set_defaults(variables: Mapping[str, str]) -> None:
    """Set the environment variables that are not set yet."""
    os.environ.update({name: value for name, value in variables.items() if name not in os.environ})
