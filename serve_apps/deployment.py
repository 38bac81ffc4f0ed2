"""The server on Ray Serve: one replica with all sessions, and actors with their learners.

On this machine alone, the replica listens itself. On a cluster, Ray Serve's proxies do.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import ray
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field
from ray import serve
from ray.serve import Application
from ray.serve._private import replica
from ray.serve.schema import LoggingConfig

from driftlab.actors.cluster import LOOPBACK, ClusterConfig, connect, processors
from driftlab.actors.sessions import start_workers
from driftlab.errors import RequestError
from driftlab.serve_apps.http_server import Door, ServerAddress, listener_of
from driftlab.serve_apps.routes import build_app
from driftlab.serve_apps.sessions import Hub, Limits

log = logging.getLogger(__name__)
NAME = "driftlab"
TOKEN_VARIABLE, MIN_TOKEN = "DRIFTLAB_TOKEN", 16  # characters
LEAN = {  # fewer threads between a request and its route, none of which blocks
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
}
MOST_REQUESTS = 400  # at the same time: most of them are held until a result is there
REQUEST_S = 900  # opening a session may train its network
DRAIN_S = 5.0  # for rounds to end before the server does
LEAVE_S, LEAVE_CLUSTER_S = 3.0, 60.0  # for Serve to shut down; a Ray that was started for it ends in any case


class ServerArgs(BaseModel):
    """The arguments of a Serve config file."""

    model_config = ConfigDict(extra="forbid")

    folder: str
    token: str = Field(
        default_factory=lambda: os.environ.get(TOKEN_VARIABLE, ""), min_length=MIN_TOKEN, validate_default=True
    )
    sessions: int = Field(64, ge=1)
    rate: float = Field(200.0, gt=0)  # requests per second of one token
    workers: Annotated[int, Field(ge=0)] = 0  # processes with the learners of the sessions; 0: one for each processor
    cert: str = ""  # file that the server's own demo device trusts
    key: str = ""  # its private key, where the replica listens itself
    port: Annotated[int, Field(ge=0)] = (
        0  # of this machine on which the replica listens itself; 0: behind Ray Serve's proxies
    )


def _replica() -> Any:
    return serve.get_replica_context().servable_object


def build_ingress() -> FastAPI:
    """Build the routes in the replica, over its own hub."""
    return build_app(lambda: _replica().hub)


@serve.deployment(
    name=NAME,
    num_replicas=1,
    max_ongoing_requests=MOST_REQUESTS,
    graceful_shutdown_timeout_s=2,
    graceful_shutdown_wait_loop_s=0.1,
    ray_actor_options={"num_cpus": 0.1},
)
@serve.ingress(build_ingress)
class ModelStreaming:
    """Holds the sessions of a server."""

    def __init__(self, args: ServerArgs) -> None:
        _keep_replica_from_the_network()
        limits = Limits(sessions=args.sessions, rate=args.rate)
        workers = start_workers(args.workers or processors())
        self.hub = Hub(Path(args.folder), args.token, limits, args.cert, workers)
        where = ServerAddress(LOOPBACK, args.port, args.cert, args.key)
        self.door = Door(build_app(lambda: self.hub), where) if args.port else None

    async def drain(self, most_s: float) -> None:
        """Take nothing more, and finish what was acknowledged."""
        await asyncio.to_thread(self.hub.drain, most_s)

    def check_health(self) -> None:
        """Fail where a thread has ended: Serve then starts another replica from the folder."""
        if not self.hub.is_working or (self.door is not None and not self.door.thread.is_alive()):
            raise RuntimeError("the thread of the training rounds or of the port has ended")

    def __del__(self) -> None:
        if self.door is not None:
            self.door.close()
        self.hub.close()


def _keep_replica_from_the_network() -> None:
    """Let this replica listen on the loopback interface only, if its Ray does.

    Serve opens a port of each replica on every interface, for calls between deployments, after the replica was
    constructed. No setting prevents that, so the function that opens the port is replaced in this process.
    """
    here = ray.get_runtime_context().get_node_id()
    if [node["NodeManagerAddress"] for node in ray.nodes() if node["NodeID"] == here] != [LOOPBACK]:
        return
    name = "add_port_to_grpc_server"
    add = getattr(replica, name, None)
    if add is None:
        log.warning("This version of Ray Serve cannot be kept from listening on the network.")
    else:
        setattr(replica, name, lambda server, address: add(server, address.replace("[::]", LOOPBACK)))


def application(args: ServerArgs | dict[str, Any]) -> Application:
    """Build the application for `serve run` and Serve config files, whose arguments are a mapping."""
    return ModelStreaming.bind(ServerArgs.model_validate(args))  # type: ignore[attr-defined,no-any-return]


@contextlib.contextmanager
def serving(args: ServerArgs, where: ServerAddress, address: str | None = None) -> Iterator[None]:
    """Serve on Ray until the block ends; a Ray that was started for it ends too."""
    os.environ.update({name: value for name, value in LEAN.items() if name not in os.environ})
    if address is None and "RAY_ADDRESS" not in os.environ:
        _check_free(where)
        args = args.model_copy(update={"port": where.port, "cert": where.cert, "key": where.key})
    cluster = connect(ClusterConfig(address=address, run=NAME, go_on="Start `driftlab serve` again: sessions go on."))
    try:
        cluster.run(lambda: _start(args, where))
        yield
    finally:
        with contextlib.suppress(Exception):  # Serve may be gone with its Ray, or still be starting
            cluster.run(_drain, DRAIN_S)
        with contextlib.suppress(Exception):
            cluster.run(serve.shutdown, LEAVE_S if cluster.local else LEAVE_CLUSTER_S)
        cluster.close()


def _check_free(where: ServerAddress) -> None:
    """Refuse a port that another program listens on, before Ray takes seconds to start."""
    try:
        listener_of(where).close()
    except OSError as error:
        raise RequestError(f"Port {where.port} cannot be opened: {error.strerror}; choose another one.") from error


def http_options(where: ServerAddress) -> dict[str, Any]:
    """Say to Serve where it listens, and with which certificate."""
    options: dict[str, Any] = {"host": where.host, "port": where.port, "request_timeout_s": REQUEST_S}
    return options | ({"ssl_certfile": where.cert, "ssl_keyfile": where.key} if where.cert else {})


def _drain() -> None:
    """Let the replica finish what it has acknowledged."""
    serve.get_app_handle(NAME).drain.remote(DRAIN_S).result(timeout_s=DRAIN_S)


def _start(args: ServerArgs, where: ServerAddress) -> None:
    logging.getLogger("ray.serve").setLevel(logging.WARNING)  # it tells of its own start
    ways: dict[str, Any] = {"proxy_location": "Disabled"} if args.port else {"http_options": http_options(where)}
    serve.start(**ways, logging_config=LoggingConfig(enable_access_log=False))
    serve.run(application(args), name=NAME, route_prefix="/")


__all__: Sequence[str] = ("ServerAddress", "ServerArgs", "application", "serving")
