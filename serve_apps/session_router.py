"""Ray Serve's routing of a session's requests to the replica that hosts it."""

from __future__ import annotations

import pickle
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from driftlab.serve_apps.shards import COUNT, shard_of_request

REPLICA, SHARDS = "replica", "shards"  # keys of a replica's report to routers; the first is an argument of calls, too


class SessionRouter(RequestRouter):
    """Routes by the session in a request's path.

    A new session goes to the replica of a random shard, as Serve takes the first of several candidates with equal
    queues. All other requests without a session go to the replica of shard 0.
    """

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return the replica of a request.

        While its shard moves to another one there is none, and Serve repeats the call.
        """
        if pending_request is None:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True
        may_reply = condition_of(pending_request)
        return [[one for one in candidate_replicas if may_reply(one.routing_stats)]]


def condition_of(request: PendingRequest) -> Callable[[Mapping[str, Any]], bool]:
    """Return a function that decides by the report of a replica whether it may reply to a request."""
    if REPLICA in request.kwargs:
        return lambda reported: bool(reported.get(REPLICA) == request.kwargs[REPLICA])
    shard: int | None = 0
    if request.args and isinstance(request.args[0], bytes):
        scope = pickle.loads(request.args[0]).asgi_scope  # pickled by Serve's proxy, not by the client
        shard = shard_of_request(scope["path"], scope.get("method"))
    wanted = secrets.randbelow(COUNT) if shard is None else shard
    return lambda reported: wanted in reported.get(SHARDS, ())
