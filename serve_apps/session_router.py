"""Ray Serve's routing of a session's requests to the replica that hosts it."""

from __future__ import annotations

import pickle
from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from driftlab.serve_apps.shards import shard_of

SHARD = "shard"  # argument of calls between replicas, and key of a replica's report to routers
PREFIX = "/sessions/"


class SessionRouter(RequestRouter):
    """Routes by the session in a request's path.

    Any replica may open a session; all other requests without a session go to shard 0.
    """

    def initialize_state(self, **given: Any) -> None:
        self._count = int(given["replicas"])

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return the replica of a request's shard.

        While it is being replaced there is none, and Serve repeats the call.
        """
        if pending_request is None:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True
        shard = requested_shard(pending_request, self._count)
        return [[one for one in candidate_replicas if shard is None or one.routing_stats.get(SHARD) == shard]]


def requested_shard(request: PendingRequest, count: int) -> int | None:
    """Return the number of the shard that a request requires; None if any replica may reply."""
    if SHARD in request.kwargs:
        return int(request.kwargs[SHARD])
    if not request.args or not isinstance(request.args[0], bytes):
        return 0
    scope = pickle.loads(request.args[0]).asgi_scope  # pickled by Serve's proxy, not by the client
    path: str = scope["path"]
    if path.startswith(PREFIX):
        return shard_of(path.removeprefix(PREFIX).partition("/")[0], count)
    return None if (path, scope.get("method")) == ("/sessions", "POST") else 0
