"""Ray's provider of simulated computers, for node types that state their memory."""

from __future__ import annotations

from ray._private.node import Node
from ray.autoscaler._private.fake_multi_node.node_provider import FakeMultiNodeProvider

for unused in ("start_log_monitor", "start_api_server"):  # in the autoscaler's process, which starts the computers
    setattr(Node, unused, lambda *args, **kwargs: None)


class GrowingProvider(FakeMultiNodeProvider):
    def create_node_with_resources_and_labels(self, node_config, tags, count, resources, labels):
        """Start a node, which finds its memory itself: Ray refuses it as a resource of a simulated one."""
        rest = {name: amount for name, amount in resources.items() if name != "memory"}
        super().create_node_with_resources_and_labels(node_config, tags, count, rest, labels)
