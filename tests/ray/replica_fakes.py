"""A deployment whose replicas reply with their shard and process."""

from __future__ import annotations

import os
from pathlib import Path

from ray import serve

from driftlab.serve_apps.session_router import SHARD
from driftlab.serve_apps.shards import take_shard


@serve.deployment(ray_actor_options={"num_cpus": 0}, health_check_period_s=0.5, graceful_shutdown_timeout_s=0)
class ShardEcho:
    def __init__(self, folder, count):
        self.locked = take_shard(Path(folder), count)

    def record_routing_stats(self):
        return {SHARD: self.locked.shard.number}

    async def __call__(self, request):
        return [self.locked.shard.number, os.getpid()]
