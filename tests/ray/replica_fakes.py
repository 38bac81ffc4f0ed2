"""A deployment whose replicas reply with their name and process."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from ray import serve
from starlette.responses import Response

from driftlab.serve_apps.session_router import REPLICA, SHARDS
from driftlab.serve_apps.shards import HeldShards, session_of


def ignore(shard):
    """Do nothing."""


@serve.deployment(
    max_ongoing_requests=100,
    health_check_period_s=0.5,
    graceful_shutdown_timeout_s=0,
    graceful_shutdown_wait_loop_s=0.1,
)
class ShardEcho:
    def __init__(self, folder):
        self.shards = HeldShards(Path(folder))
        self.shards.start(ignore, ignore)

    def record_routing_stats(self):
        return {REPLICA: self.shards.name, SHARDS: self.shards.numbers}

    async def __call__(self, request):
        session = session_of(request.url.path)
        if session is not None and not self.shards.holds(session):
            return Response(status_code=503)
        await asyncio.sleep(float(request.query_params.get("hold_s", 0)))
        return [self.shards.name, os.getpid(), len(self.shards.held)]
