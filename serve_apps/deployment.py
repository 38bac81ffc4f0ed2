"""The server on Ray Serve: one replica with all sessions, which answers images of many devices in batches."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field
from ray import serve
from ray.serve import Application
from ray.serve._private import replica

from driftlab.actors.cluster import LOOPBACK, ClusterConfig, connect
from driftlab.serve_apps.hosting import HostedSession
from driftlab.serve_apps.hub import Hub, Limits
from driftlab.serve_apps.routes import build_app

log = logging.getLogger(__name__)
NAME = "driftlab"
TOKEN_VARIABLE, MIN_TOKEN = "DRIFTLAB_TOKEN", 16  # characters
MOST_REQUESTS = 400  # at the same time: most of them are held until a result is there
REQUEST_S = 900  # opening a session may train its network
DRAIN_S = 5.0  # for rounds to end before the server does
LEAVE_S, LEAVE_CLUSTER_S = 3.0, 60.0  # for Serve to shut down; a Ray that was started for it ends in any case
BATCH, BATCH_WAIT_S = 32, 0.005

Image = np.ndarray[Any, Any]


class ServerArgs(BaseModel):
    """The arguments of a Serve config file."""

    model_config = ConfigDict(extra="forbid")

    folder: str
    token: str = Field(
        default_factory=lambda: os.environ.get(TOKEN_VARIABLE, ""), min_length=MIN_TOKEN, validate_default=True
    )
    sessions: int = Field(64, ge=1)
    rate: float = Field(200.0, gt=0)  # requests per second of one token
    cert: str = ""  # file that the server's own demo device trusts


@serve.batch(max_batch_size=BATCH, batch_wait_timeout_s=BATCH_WAIT_S)
async def answer_batch(asked: list[tuple[HostedSession, Image]]) -> list[tuple[int, Any]]:
    """Answer images, one pass of the network for each session; every answer names its version."""
    groups: dict[int, list[int]] = defaultdict(list)
    for place, (session, _) in enumerate(asked):
        groups[id(session)].append(place)
    answers: list[tuple[int, Any]] = [(0, None)] * len(asked)
    for places in groups.values():
        session = asked[places[0]][0]
        images = np.stack([asked[place][1] for place in places])
        version, found = await asyncio.to_thread(session.answer, images)
        for place, answer in zip(places, found, strict=True):
            answers[place] = (version, answer)
    return answers


async def answer_in_batch(session: HostedSession, image: Image) -> tuple[int, Any]:
    """Answer one image together with others that come at the same time."""
    found: tuple[int, Any] = await answer_batch((session, image))
    return found


def _replica() -> Any:
    return serve.get_replica_context().servable_object


def build_ingress() -> FastAPI:
    """Build the routes in the replica, over its own hub."""
    return build_app(lambda: _replica().hub, answer_in_batch)


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
        self.hub = Hub(Path(args.folder), args.token, Limits(sessions=args.sessions, rate=args.rate), args.cert)

    async def drain(self, most_s: float) -> None:
        """Take nothing more, and finish what was acknowledged."""
        await asyncio.to_thread(self.hub.drain, most_s)

    def check_health(self) -> None:
        """Fail where the rounds no longer run: Serve then starts another replica from the folder."""
        if not self.hub.is_working:
            raise RuntimeError("the thread of the training rounds has ended")

    def __del__(self) -> None:
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


@dataclass(frozen=True)
class ServerAddress:
    """Where a server listens."""

    host: str
    port: int
    cert: str = ""  # files for TLS
    key: str = ""

    @property
    def url(self) -> str:
        return f"{'https' if self.cert else 'http'}://{self.host}:{self.port}"


@contextlib.contextmanager
def serving(args: ServerArgs, where: ServerAddress, address: str | None = None) -> Iterator[None]:
    """Serve on Ray until the block ends; a Ray that was started for it ends too."""
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


def http_options(where: ServerAddress) -> dict[str, Any]:
    """Say to Serve where it listens, and with which certificate."""
    options: dict[str, Any] = {"host": where.host, "port": where.port, "request_timeout_s": REQUEST_S}
    return options | ({"ssl_certfile": where.cert, "ssl_keyfile": where.key} if where.cert else {})


def _drain() -> None:
    """Let the replica finish what it has acknowledged."""
    serve.get_app_handle(NAME).drain.remote(DRAIN_S).result(timeout_s=DRAIN_S)


def _start(args: ServerArgs, where: ServerAddress) -> None:
    logging.getLogger("ray.serve").setLevel(logging.WARNING)  # it tells of its own start
    serve.start(http_options=http_options(where))
    serve.run(application(args), name=NAME, route_prefix="/")


__all__: Sequence[str] = ("ServerAddress", "ServerArgs", "application", "serving")
