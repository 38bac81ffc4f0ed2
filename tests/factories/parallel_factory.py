"""Distribute tests over processes that may die, where pytest-xdist 3.8 fails (#714, #1323, #1327)."""

from __future__ import annotations

import os
from collections.abc import Sequence

from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController

RAY_GROUPS = {"ray", "serve"}  # whose worker waits for much of its time
REAL_TIME = "real-time"  # tests that fail while those of Ray run, and at a low priority


class FileScheduling(LoadGroupScheduling):
    """Gives the tests of a group, or of a file, to one worker; a test whose worker dies is not run again."""

    @property
    def collection_is_completed(self) -> bool:
        """Stay true once tests are distributed, whichever workers come and go."""
        return self.collection is not None or super().collection_is_completed

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        """Register the tests of a worker; one that replaces another must have collected the same."""
        super().add_node_collection(node, collection)
        if node not in self.registered_collections:
            raise RuntimeError(f"{node.gateway.id} replaces a worker that died, and collected other tests")

    def remove_node(self, node: WorkerController) -> str | None:
        """Return the test that the worker was running when it died, and queue the tests that it had not begun."""
        if self.collection is None:
            self.registered_collections.pop(node, None)
        work = self.assigned_work.pop(node)
        left = [(scope, test) for scope, unit in work.items() for test, done in unit.items() if not done]
        for scope, test in left[1:]:
            self.workqueue.setdefault(scope, {})[test] = False
        for other in self.assigned_work:
            self._reschedule(other)
        return left[0][1] if left else None

    def _reschedule(self, node: WorkerController) -> None:
        """Send two tests at least, or the end: a worker begins a test when it has received the next one."""
        if node not in self.registered_collections or node.shutting_down:  # it is still collecting, or ends
            return
        if self._is_last_of_ray(node) and REAL_TIME in self.workqueue:
            self.workqueue.move_to_end(REAL_TIME, last=False)
        elif self._is_one_too_many(node):
            node.shutdown()
            return
        super()._reschedule(node)
        if self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Keep tests in real time for the last worker with tests of Ray."""
        if REAL_TIME in self.workqueue and any(map(_has_ray_tests, self._others(node))):
            self.workqueue.move_to_end(REAL_TIME)
        super()._assign_work_unit(node)

    def _is_last_of_ray(self, node: WorkerController) -> bool:
        return self._ends_with_ray(node) and not any(map(_has_ray_tests, self._others(node)))

    def _is_one_too_many(self, node: WorkerController) -> bool:
        """Return whether a worker ends its tests of Ray while others keep the processors busy."""
        busy = sum(not _has_ray_tests(work) for work in self._others(node))
        return self._ends_with_ray(node) and busy >= (os.cpu_count() or 1)

    def _ends_with_ray(self, node: WorkerController) -> bool:
        """Return whether a worker has had tests of Ray, and no more than one of its tests is left to begin."""
        own = self.assigned_work[node]
        return bool(RAY_GROUPS & own.keys()) and not RAY_GROUPS & self.workqueue.keys() and self._pending_of(own) <= 2

    def _others(self, node: WorkerController) -> list[dict[str, dict[str, bool]]]:
        """Return the tests of all other workers that continue."""
        return [work for one, work in self.assigned_work.items() if one is not node and not one.shutting_down]

    def _split_scope(self, nodeid: str) -> str:
        group = super()._split_scope(nodeid)
        return nodeid.partition("::")[0] if group == nodeid else group


def _has_ray_tests(work: dict[str, dict[str, bool]]) -> bool:
    return any(not all(tests.values()) for scope, tests in work.items() if scope in RAY_GROUPS)
