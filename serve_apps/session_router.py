"""Ray Serve's routing of a session's requests to the replica that hosts it."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from driftlab.serve_apps.shards import session_of, shard_of

REPLICA, SHARDS = "replica", "shards"  # keys of a replica's report to routers; the first is an argument of calls, too


class SessionRouter(RequestRouter):
    """Routes by the session in a request's path.

    Any replica with shards may open a session; all other requests without a session go to that of shard 0.
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
        return [[one for one in candidate_replicas if may_reply(one.routing_stats, pending_request)]]


def may_reply(reported: Mapping[str, Any], request: PendingRequest) -> bool:
    """Return whether the replica with this report may reply to a request."""
    if REPLICA in request.kwargs:
        return bool(reported.get(REPLICA) == request.kwargs[REPLICA])
    shards = reported.get(SHARDS, ())
    if not request.args or not isinstance(request.args[0], bytes):
        return 0 in shards
    scope = pickle.loads(request.args[0]).asgi_scope  # pickled by Serve's proxy, not by the client
    session = session_of(scope["path"])
    if session is not None:
        return shard_of(session) in shards
    return bool(shards) if (scope["path"], scope.get("method")) == ("/sessions", "POST") else 0 in shards
