"""The index of networks by latency, and the B+ tree of the benchmark, against a scan of all networks."""

from __future__ import annotations

import random

from benchmarks._bplus import ORDER, BPlusTree
from driftlab.platform.scaling.adaptivenet import LatencyIndex


def check(tree: BPlusTree) -> None:
    """Check order, fill, depth and the greatest accuracy of every node, and the chain of leaves."""
    leaves = []

    def walk(node, depth):
        if node is not tree.root:
            assert ORDER // 2 <= node.size <= ORDER
        assert node.keys == sorted(node.keys)
        if node.is_leaf:
            leaves.append((depth, node))
            assert node.best == max(node.values, default=float("-inf"))
            return
        assert len(node.keys) == len(node.children) - 1
        for place, child in enumerate(node.children):
            walk(child, depth + 1)
            keys = [key for below in child.keys for key in (below,)]
            assert all(place == 0 or key >= node.keys[place - 1] for key in keys)
            assert all(place == len(node.keys) or key < node.keys[place] for key in keys)
        assert node.best == max(child.best for child in node.children)

    walk(tree.root, 0)
    assert len({depth for depth, _ in leaves}) == 1
    chain = [leaves[0][1]]
    while chain[-1].following is not None:
        chain.append(chain[-1].following)
    assert chain == [leaf for _, leaf in leaves]


def test_the_tree_stays_in_order_and_agrees_with_a_list():
    draw, tree, held = random.Random(0), BPlusTree(), dict[int, tuple[float, float]]()
    for step in range(2000):
        if held and draw.random() < 0.45:
            number = draw.choice(sorted(held))
            tree.delete(held.pop(number)[0], number)
        else:
            held[step] = (draw.randrange(200) / 100, draw.random())  # with repeated latencies
            tree.insert(held[step][0], step, held[step][1])
        if step % 100 == 99:
            check(tree)
            low, high = sorted((draw.random() * 2, draw.random() * 2))
            inside = sorted((latency, number) for number, (latency, _) in held.items() if low <= latency <= high)
            assert tree.range(low, high) == [number for _, number in inside]
            below = [accuracy for latency, accuracy in held.values() if latency <= high]
            assert tree.greatest(high) == max(below, default=float("-inf"))


def test_a_look_up_visits_a_node_of_each_level():
    for count in (10, 480, 5000):
        draw = random.Random(count)
        tree = BPlusTree([(draw.random(), number, draw.random()) for number in range(count)])
        for limit in (-1.0, 0.3, 2.0):
            tree.greatest(limit)
            assert tree.visits == tree.height
    assert tree.height == 4


def test_sorted_arrays_return_the_result_of_a_scan():
    draw = random.Random(1)
    latencies = [draw.randrange(50) / 10 for _ in range(300)]
    accuracies = [draw.randrange(40) / 40 for _ in range(300)]
    index = LatencyIndex.of(latencies, accuracies)
    for limit in (-0.1, 0.0, 1.25, 2.0, 9.0):
        inside = [which for which in range(300) if latencies[which] <= limit]
        best = max(inside, key=lambda which: (accuracies[which], -latencies[which], -which), default=None)
        assert index.most_accurate(limit) == best


def test_front_returns_the_undominated_networks():
    index = LatencyIndex.of([3.0, 1.0, 2.0, 2.0, 4.0], [0.7, 0.5, 0.6, 0.65, 0.7])
    assert index.front() == (1, 3, 0)
    assert index.most_accurate(0.5) is None
