"""The server on Ray Serve: replicas host the sessions, and actors host their learners.

On a single computer the replicas listen on the port themselves, if their number is fixed and there is no TLS; so does a
single replica with TLS. Otherwise Ray Serve's proxies listen.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import ray
from pydantic import BaseModel, ConfigDict, Field, model_validator
from ray import serve
from ray.serve import Application
from ray.serve._private import replica
from ray.serve.config import RequestRouterConfig
from ray.serve.schema import LoggingConfig

from driftlab.actors.cluster import LOOPBACK, PROCESS_BYTES, ClusterConfig, connect, gpu_share, processors
from driftlab.actors.sessions import start_workers
from driftlab.determinism import make_deterministic
from driftlab.errors import RequestError
from driftlab.platform.field.rounds import NETWORKS
from driftlab.platform.sim.host import search_garbage_rarely
from driftlab.serve_apps.handover import IS_SUPPORTED, SharedPortServer
from driftlab.serve_apps.http_server import HttpServer, ServerAddress, listener_of
from driftlab.serve_apps.predicting_process import IS_SUPPORTED as HAS_SHARED_MEMORY
from driftlab.serve_apps.quotas import Limits
from driftlab.serve_apps.routes import ServerApp
from driftlab.serve_apps.session_router import REPLICA, SHARDS, SessionRouter
from driftlab.serve_apps.sessions import SessionRegistry
from driftlab.serve_apps.shards import HeldShards

log = logging.getLogger(__name__)
NAME = "driftlab"
TOKEN_VARIABLE, MIN_TOKEN = "DRIFTLAB_TOKEN", 16  # characters
LEAN = {  # no extra threads between a request and its route: no route blocks
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
}
DEVICE = r"^(cpu|cuda(:[0-9]{1,3})?)$"
MAX_REQUESTS = 400  # at the same time; most are held until there is a result
REQUEST_TIMEOUT_S = 900  # opening a session may train its network
STATS_INTERVAL_S = 0.5  # between reports of a replica's shards to the routers
STATES_TIMEOUT_S = 5.0  # for the states of another replica's sessions
SCALING = {"upscale_delay_s": 10.0, "downscale_delay_s": 120.0}  # devices open sessions at once, and each move costs
DRAIN_TIMEOUT_S = 5.0  # for rounds to end before the server stops
LOCAL_SHUTDOWN_TIMEOUT_S, CLUSTER_SHUTDOWN_TIMEOUT_S = 3.0, 60.0  # of Serve; a local Ray is ended in any case


class ServerArgs(BaseModel):
    """The arguments in a Serve config file."""

    model_config = ConfigDict(extra="forbid")

    state_dir: str
    token: str = Field(
        default_factory=lambda: os.environ.get(TOKEN_VARIABLE, ""), min_length=MIN_TOKEN, validate_default=True
    )
    max_sessions: int = Field(64, ge=1)
    rate_limit: float = Field(200.0, gt=0)  # requests per second of one token
    replicas: Annotated[int, Field(ge=1, le=64)] = 1  # processes that host sessions, at least
    max_replicas: Annotated[int, Field(ge=0, le=64)] = 0  # as many if there are enough requests; 0: `replicas`
    requests_per_replica: Annotated[float, Field(gt=0)] = 100.0  # at the same time, above which there is one more
    cpus: Annotated[float, Field(ge=0)] = 0.1  # that a replica requests from Ray for itself and its learners
    memory: Annotated[int, Field(ge=0)] | None = None  # in bytes, in the same manner; None: `PROCESS_BYTES` a process
    workers: Annotated[int, Field(ge=0)] = 0  # processes that host learners; 0: one per CPU core, or per GPU
    networks: Annotated[int, Field(ge=1)] = NETWORKS  # of sessions that a process keeps in memory
    torch_device: Annotated[str, Field(pattern=DEVICE)] = "cpu"  # of learners and predictions
    gpus_per_actor: Annotated[float, Field(ge=0, le=1)] = 0.0  # of each replica and actor; 0: equal shares of all
    cert: str = ""  # certificate file, which the demo device trusts
    key: str = ""  # its private key, if a single replica listens itself
    host: str = LOOPBACK  # on which the replicas listen themselves
    port: Annotated[int, Field(ge=0)] = 0  # on which the replicas listen themselves; 0: Ray Serve's proxies listen

    @model_validator(mode="after")
    def _check_replicas(self) -> ServerArgs:
        if 0 < self.max_replicas < self.replicas:
            raise RequestError(f"The maximum of {self.max_replicas} replicas is less than {self.replicas} replicas.")
        if self.port and self.most > 1 and not self.may_share_port:
            raise RequestError("port needs one replica, or a fixed number of them without cert on Linux. Leave it out.")
        return self

    @property
    def may_share_port(self) -> bool:
        """Return whether all replicas can listen on one port of a computer.

        A connection with TLS cannot be handed over, and Ray Serve counts the requests of its proxies only.
        """
        return IS_SUPPORTED and self.most == self.replicas and not self.cert

    @property
    def most(self) -> int:
        """Return the maximum number of replicas."""
        return max(self.replicas, self.max_replicas)

    @property
    def racks(self) -> int:
        """Return the number of processes of a replica that host learners."""
        return math.ceil((self.workers or processors()) / self.most)

    @property
    def has_child(self) -> bool:
        """Return whether a replica has a second core, on which a child predicts under load.

        Where proxies read the requests, they use the other cores.
        """
        fits = HAS_SHARED_MEMORY and processors() >= 2 * self.replicas
        return bool(self.port) and self.torch_device == "cpu" and fits

    @property
    def options(self) -> dict[str, float]:
        """Return the resources that a replica requests for itself and its other processes.

        Those host learners, build networks, and predict.
        """
        memory = PROCESS_BYTES * (self.racks + 2 + self.has_child) if self.memory is None else self.memory
        cpus = {"num_cpus": self.cpus, "num_gpus": self.gpus_per_actor}
        return cpus | ({"memory": memory} if memory else {})


def _replica() -> Any:
    return serve.get_replica_context().servable_object


def build_ingress() -> ServerApp:
    """Return the application of the replica."""
    return ServerApp(lambda: _replica().hub)


@serve.deployment(
    name=NAME,
    num_replicas=1,
    max_ongoing_requests=MAX_REQUESTS,
    graceful_shutdown_timeout_s=2,
    graceful_shutdown_wait_loop_s=0.1,
)
@serve.ingress(build_ingress)
class ModelStreaming:
    """The replica that hosts the sessions of a server."""

    def __init__(self, args: ServerArgs) -> None:
        _keep_replica_from_the_network()
        make_deterministic(args.torch_device)
        folder, limits = Path(args.state_dir), Limits(max_sessions=args.max_sessions, rate_limit=args.rate_limit)
        workers = start_workers(args.racks, args.torch_device, args.gpus_per_actor, args.networks)
        self.shards = HeldShards(folder) if args.most > 1 else None
        given = (args.token, limits, args.cert, workers, self.shards, args.torch_device, args.networks)
        self.hub = SessionRegistry(folder, *given)
        if self.shards is not None:
            self.hub.elsewhere = self._states_elsewhere
            self.shards.start(self.hub.reopen, self.hub.hand_over)
        where = ServerAddress(args.host, args.port, args.cert, args.key)
        self.door: HttpServer | None = None
        if args.port:
            app = ServerApp(lambda: self.hub, args.networks if args.has_child else 0)
            self.batches = app.batches
            self.batches.warm_up()
            self.door = HttpServer(app, where) if self.shards is None else SharedPortServer(app, where, self.shards)
        search_garbage_rarely()

    def record_routing_stats(self) -> dict[str, Any]:
        """Return the name and the shards of this replica, for `SessionRouter`."""
        return {} if self.shards is None else {REPLICA: self.shards.name, SHARDS: self.shards.numbers}

    async def replicas(self) -> list[str]:
        """List the names of all replicas."""
        return [] if self.shards is None else await asyncio.to_thread(self.shards.replicas)

    async def states(self, replica: str) -> dict[str, Any]:
        """Return the states of a replica's sessions; the router has selected it."""
        return self.hub.states()

    async def _states_elsewhere(self) -> dict[str, Any]:
        """Return the states of the other replicas' sessions, without a replica that has just ended."""
        handle = serve.get_deployment_handle(NAME, serve.get_replica_context().app_name)
        others = [name for name in await self.replicas() if self.shards is None or name != self.shards.name]
        calls = [asyncio.wait_for(handle.states.remote(replica=name), STATES_TIMEOUT_S) for name in others]
        found = await asyncio.gather(*calls, return_exceptions=True)
        return {name: state for states in found if isinstance(states, dict) for name, state in states.items()}

    async def drain(self, max_s: float, replica: str = "") -> None:
        """Refuse new work of a replica, and finish rounds on acknowledged uploads within `max_s`."""
        await asyncio.to_thread(self.hub.drain, max_s)

    def check_health(self) -> None:
        """Raise if a thread has ended: Serve then starts another replica from the folder."""
        owners = (self.door, self.shards)
        if not self.hub.is_working or any(one is not None and not one.is_working for one in owners):
            raise RuntimeError("a thread of the training rounds, the shards or the HTTP server has ended")

    def __del__(self) -> None:
        if self.door is not None:
            self.door.close()
            self.batches.close()
        self.hub.close()
        if self.shards is not None:
            self.shards.close()


def _keep_replica_from_the_network() -> None:
    """Make this replica listen on the loopback interface only, if its Ray does.

    After a replica is constructed, Serve opens a port on every interface, for calls between deployments. No setting
    prevents that, so the function that opens the port is replaced in this process.
    """
    here = ray.get_runtime_context().get_node_id()
    if [node["NodeManagerAddress"] for node in ray.nodes() if node["NodeID"] == here] != [LOOPBACK]:
        return
    name = "add_port_to_grpc_server"
    add = getattr(replica, name, None)
    if add is None:
        log.warning("This version of Ray Serve listens on all network interfaces. Use a firewall.")
    else:
        setattr(replica, name, lambda server, address: add(server, address.replace("[::]", LOOPBACK)))


def application(args: ServerArgs | dict[str, Any]) -> Application:
    """Return the application for `serve run` and Serve config files, which pass a mapping."""
    args = with_gpus(ServerArgs.model_validate(args))
    return cast("Application", replicated(ModelStreaming, args).bind(args))


def with_gpus(args: ServerArgs) -> ServerArgs:
    """Return the arguments with the number of workers on a GPU, and the share that every process requests.

    All processes of a server fit on the smallest computer with a GPU, since Ray may place them there. A numbered GPU is
    used without a request.
    """
    kind, _, number = args.torch_device.partition(":")
    if kind == "cpu" or number:
        return args if kind == "cpu" else args.model_copy(update={"workers": args.workers or 1})
    each = [int(node["Resources"].get("GPU", 0)) for node in ray.nodes() if node["Alive"]]
    gpus = min((count for count in each if count), default=0)
    if not gpus:
        raise RequestError("torch_device is 'cuda' and no computer of this Ray has a GPU. Use cpu, or a Ray with GPUs.")
    workers = args.workers or gpus
    processes = args.most * (math.ceil(workers / args.most) + 2)  # with a replica and its builder
    share = args.gpus_per_actor or gpu_share(1.0, math.ceil(processes / gpus))
    return args.model_copy(update={"workers": workers, "gpus_per_actor": share})


def replicated(deployment: Any, args: ServerArgs) -> Any:
    """Return a deployment with replicas for its requests, each of which receives those of its shards."""
    deployment = deployment.options(ray_actor_options=args.options)
    if args.most == 1:
        return deployment
    router = cast("Any", RequestRouterConfig)(  # mypy takes its fields for those of a private one
        request_router_class=SessionRouter, request_routing_stats_period_s=STATS_INTERVAL_S
    )
    if args.most == args.replicas:
        return deployment.options(num_replicas=args.replicas, request_router_config=router)
    scaling = {
        "min_replicas": args.replicas,
        "max_replicas": args.most,
        "target_ongoing_requests": args.requests_per_replica,
        **SCALING,
    }
    return deployment.options(num_replicas="auto", autoscaling_config=scaling, request_router_config=router)


@contextlib.contextmanager
def serving(args: ServerArgs, where: ServerAddress, address: str | None = None) -> Iterator[None]:
    """Serve on Ray until the block ends; also shut down a Ray that was started for it."""
    os.environ.update({name: value for name, value in LEAN.items() if name not in os.environ})
    with contextlib.ExitStack() as kept:
        if address is None and "RAY_ADDRESS" not in os.environ:
            kept.enter_context(_reserve(where))
            if args.most == 1 or args.may_share_port:
                listening = {"host": where.host, "port": where.port, "cert": where.cert, "key": where.key}
                args = args.model_copy(update=listening)
        fix = "Start `driftlab serve` again: sessions resume."
        cluster = connect(ClusterConfig(address=address, run=NAME, go_on=fix))
        args = args.model_copy(update={"memory": 0}) if cluster.local else args  # it gets no more, so it would wait
        try:
            cluster.run(lambda: _start(args, where))
            yield
        finally:
            with contextlib.suppress(Exception):  # Serve may have ended with its Ray, or still be starting
                cluster.run(_drain, DRAIN_TIMEOUT_S + 3)
            with contextlib.suppress(Exception):
                cluster.run(serve.shutdown, LOCAL_SHUTDOWN_TIMEOUT_S if cluster.local else CLUSTER_SHUTDOWN_TIMEOUT_S)
            cluster.close()


def _reserve(where: ServerAddress) -> socket.socket:
    """Reserve a port until the returned socket is closed; raise if it is in use, before Ray starts.

    Replicas may share a port, so those of a second server could share it, too.
    """
    reserved = socket.socket(socket.AF_UNIX)
    try:
        if IS_SUPPORTED:
            reserved.bind(f"\0{NAME}-{where.host}-{where.port}")  # a name without a file, which ends with this process
        listener_of(where).close()
    except OSError as error:
        reserved.close()
        raise RequestError(f"Port {where.port} cannot be opened: {error.strerror}. Use another --port.") from error
    return reserved


def http_options(where: ServerAddress) -> dict[str, Any]:
    """Return Serve's options for an address and its certificate."""
    options: dict[str, Any] = {"host": where.host, "port": where.port, "request_timeout_s": REQUEST_TIMEOUT_S}
    return options | ({"ssl_certfile": where.cert, "ssl_keyfile": where.key} if where.cert else {})


def _drain() -> None:
    """Finish the rounds on acknowledged uploads."""
    handle = serve.get_app_handle(NAME)
    names = handle.replicas.remote().result(timeout_s=DRAIN_TIMEOUT_S)
    calls = [handle.drain.remote(DRAIN_TIMEOUT_S, replica=name) for name in names]
    for ended in calls or [handle.drain.remote(DRAIN_TIMEOUT_S)]:
        ended.result(timeout_s=DRAIN_TIMEOUT_S + 2)


def _start(args: ServerArgs, where: ServerAddress) -> None:
    logging.getLogger("ray.serve").setLevel(logging.WARNING)  # it logs its start at level INFO
    options: dict[str, Any] = {"proxy_location": "Disabled"} if args.port else {"http_options": http_options(where)}
    serve.start(**options, logging_config=LoggingConfig(enable_access_log=False))
    serve.run(application(args), name=NAME, route_prefix="/")


__all__: Sequence[str] = ("ServerAddress", "ServerArgs", "application", "serving")
