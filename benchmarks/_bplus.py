"""Store networks in a B+ tree by latency; each node has the greatest accuracy below it (AdaScale)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

ORDER = 16  # most keys of a node
Key = tuple[float, int]  # latency and number, which separates networks of equal latency


@dataclass(eq=False)
class Node:
    """Sorted keys; a leaf has their accuracies, an inner node has children that are split at the keys."""

    keys: list[Key] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    children: list[Node] = field(default_factory=list)
    following: Node | None = None  # the next leaf
    best: float = float("-inf")

    @property
    def is_leaf(self) -> bool:
        return not self.children

    @property
    def size(self) -> int:
        return len(self.keys) if self.is_leaf else len(self.children)

    def refresh(self) -> None:
        """Recompute the greatest accuracy below."""
        below = self.values if self.is_leaf else [child.best for child in self.children]
        self.best = max(below, default=float("-inf"))


class BPlusTree:
    """A tree with insertion, deletion, range queries and the greatest accuracy up to a latency."""

    def __init__(self, entries: Sequence[tuple[float, int, float]] = ()) -> None:
        self.root, self.visits = Node(), 0
        for latency, number, accuracy in entries:
            self.insert(latency, number, accuracy)

    def insert(self, latency: float, number: int, accuracy: float) -> None:
        """Add a network; a full node splits on the way back."""
        split = self._insert(self.root, (latency, number), accuracy)
        if split is not None:
            self.root = Node([split[0]], [], [self.root, split[1]])
            self.root.refresh()

    def delete(self, latency: float, number: int) -> None:
        """Remove a network; a node that is less than half full borrows from a neighbour or joins it."""
        self._delete(self.root, (latency, number))
        if not self.root.is_leaf and len(self.root.children) == 1:
            self.root = self.root.children[0]

    def range(self, low: float, high: float) -> list[int]:
        """List the networks from one latency to another, both included, in order."""
        leaf = self.root
        while not leaf.is_leaf:
            leaf = leaf.children[bisect_right(leaf.keys, (low, -1))]
        found, place, node = list[int](), bisect_left(leaf.keys, (low, -1)), leaf
        while True:
            for key in node.keys[place:]:
                if key[0] > high:
                    return found
                found.append(key[1])
            if node.following is None:
                return found
            node, place = node.following, 0

    def greatest(self, high: float) -> float:
        """Return the greatest accuracy up to a latency without scanning leaves; -inf if there is none."""
        node, best, limit, self.visits = self.root, float("-inf"), (high, 1 << 62), 1
        while not node.is_leaf:
            place = bisect_right(node.keys, limit)
            best = max(best, max((child.best for child in node.children[:place]), default=best))
            node = node.children[place]
            self.visits += 1
        return max(best, max(node.values[: bisect_right(node.keys, limit)], default=best))

    @property
    def height(self) -> int:
        node, height = self.root, 1
        while not node.is_leaf:
            node, height = node.children[0], height + 1
        return height

    def nodes(self) -> Iterator[Node]:
        """Yield every node."""
        todo = [self.root]
        while todo:
            node = todo.pop()
            yield node
            todo += node.children

    def _insert(self, node: Node, key: Key, accuracy: float) -> tuple[Key, Node] | None:
        split = None
        if node.is_leaf:
            place = bisect_left(node.keys, key)
            node.keys.insert(place, key)
            node.values.insert(place, accuracy)
        else:
            place = bisect_right(node.keys, key)
            below = self._insert(node.children[place], key, accuracy)
            if below is not None:
                node.keys.insert(place, below[0])
                node.children.insert(place + 1, below[1])
        if node.size > ORDER:
            split = self._split(node)
        node.refresh()
        return split

    @staticmethod
    def _split(node: Node) -> tuple[Key, Node]:
        half = node.size // 2
        if node.is_leaf:
            right = Node(node.keys[half:], node.values[half:], following=node.following)
            node.keys, node.values, node.following = node.keys[:half], node.values[:half], right
            middle = right.keys[0]
        else:
            right = Node(node.keys[half:], [], node.children[half:])
            middle = node.keys[half - 1]
            node.keys, node.children = node.keys[: half - 1], node.children[:half]
        right.refresh()
        return middle, right

    def _delete(self, node: Node, key: Key) -> None:
        if node.is_leaf:
            place = bisect_left(node.keys, key)
            if place == len(node.keys) or node.keys[place] != key:
                raise KeyError(key)
            del node.keys[place], node.values[place]
        else:
            place = bisect_right(node.keys, key)
            self._delete(node.children[place], key)
            if node.children[place].size < ORDER // 2:
                self._rebalance(node, place)
        node.refresh()

    @staticmethod
    def _rebalance(parent: Node, place: int) -> None:
        """Join a child with a neighbour; split the result into halves if it is too full."""
        left = max(0, place - 1)
        first, second = parent.children[left], parent.children[left + 1]
        if first.is_leaf:
            first.keys, first.values = first.keys + second.keys, first.values + second.values
            first.following = second.following
        else:
            first.keys = [*first.keys, parent.keys[left], *second.keys]
            first.children = first.children + second.children
        del parent.keys[left], parent.children[left + 1]
        if first.size > ORDER:
            middle, right = BPlusTree._split(first)
            parent.keys.insert(left, middle)
            parent.children.insert(left + 1, right)
        first.refresh()
