"""Statements of a syntax tree: most rules read no expressions, which are most of its nodes."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a tree that are neither expressions nor parts of one."""
    todo = [tree]
    while todo:
        node = todo.pop()
        yield node
        todo += [one for one in ast.iter_child_nodes(node) if not isinstance(one, ast.expr)]
