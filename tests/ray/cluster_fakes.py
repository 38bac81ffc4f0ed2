"""Clusters of simulated computers that die, or that Ray's autoscaler adds."""

from __future__ import annotations

import contextlib
import time
from unittest import mock

import psutil
import ray
import yaml
from ray._private.node import Node
from sockets_factory import free_ports

from driftlab.actors.cluster import PATIENT, unwatched

STORE_BYTES = 100 * 2**20
LIMIT_S = 300  # for a change of the cluster on a busy computer
FAST_DEATH = {  # also applies to the head, so it must be longer than this computer may stall
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 4,
}
GROWING = {  # as in Ray's test of its autoscaler, whose own file is not in the package
    "cluster_name": "growing",
    "max_workers": 3,
    "upscaling_speed": 10.0,
    "idle_timeout_minutes": 0.05,
    "provider": {
        "type": "external",
        "module": "growing_provider.GrowingProvider",
        "launch_multiple": True,
        "use_node_id_as_ip": True,
        "disable_node_updaters": True,
        "disable_launch_config_check": True,
        "foreground_node_launch": True,
    },
    "available_node_types": {
        "ray.head.default": {"resources": {"CPU": 1}, "node_config": {}, "max_workers": 0},
        "small": {
            "resources": {"CPU": 1, "memory": 2**31, "object_store_memory": STORE_BYTES},
            "node_config": {},
            "max_workers": 3,
        },
    },
    "head_node_type": "ray.head.default",
    **{key: {} for key in ("auth", "docker", "file_mounts")},
    **{key: [] for key in ("initialization_commands", "setup_commands", "head_setup_commands")},
    **{key: [] for key in ("worker_setup_commands", "head_start_ray_commands", "worker_start_ray_commands")},
    "cluster_synced_files": [],
}


@contextlib.contextmanager
def growing_cluster(tmp_path, monkeypatch):
    """Start a cluster of one computer, whose autoscaler adds up to three and removes idle ones after 3 s."""
    from ray.autoscaler._private.fake_multi_node.node_provider import FAKE_HEAD_NODE_ID
    from ray.cluster_utils import Cluster

    for name, value in (
        ("RAY_FAKE_CLUSTER", "1"),
        ("AUTOSCALER_UPDATE_INTERVAL_S", "1"),
        ("RAY_OVERRIDE_NODE_ID_FOR_TESTING", FAKE_HEAD_NODE_ID),
    ):
        monkeypatch.setenv(name, value)
    (port,) = free_ports(1)
    address, file = f"{ray.util.get_node_ip_address()}:{port}", tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump({**GROWING, "provider": {**GROWING["provider"], "gcs_address": address}}))
    cluster, autoscaler = Cluster(), mock.patch.object(Node, "start_monitor", Node.start_monitor)
    with unwatched(), autoscaler:
        cluster.add_node(
            num_cpus=1,
            gcs_server_port=port,
            object_store_memory=STORE_BYTES,
            include_dashboard=False,
            autoscaling_config=str(file),
            _system_config={**PATIENT, **FAST_DEATH, "health_check_failure_threshold": 10},  # 5 s, or 25 s if it stalls
        )
    monkeypatch.delenv("RAY_OVERRIDE_NODE_ID_FOR_TESTING")
    assert cluster.address == address
    yield cluster
    ray.shutdown()
    added = psutil.Process(cluster.head_node.all_processes["monitor"][0].process.pid).children(recursive=True)
    cluster.shutdown()
    for process in added:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def alive():
    return [node for node in ray.nodes() if node["Alive"]]


def wait_until(condition):
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "the cluster has not changed in time"
        time.sleep(0.1)


def end_added(cluster):
    """End a computer that the autoscaler has added, and wait until it counts as lost."""
    monitor, before = psutil.Process(cluster.head_node.all_processes["monitor"][0].process.pid), len(alive())
    next(process for process in monitor.children() if process.name() == "raylet").kill()
    wait_until(lambda: len(alive()) < before)
