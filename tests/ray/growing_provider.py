"""Ray's provider of simulated computers, for node types that state their memory."""

from __future__ import annotations

from ray.autoscaler._private.fake_multi_node.node_provider import FakeMultiNodeProvider

from driftlab.actors.cluster import unwatched


class GrowingProvider(FakeMultiNodeProvider):
    def create_node_with_resources_and_labels(self, node_config, tags, count, resources, labels):
        """Start a node, which finds its memory itself: Ray refuses it as a resource of a simulated one."""
        rest = {name: amount for name, amount in resources.items() if name != "memory"}
        with unwatched():
            super().create_node_with_resources_and_labels(node_config, tags, count, rest, labels)
