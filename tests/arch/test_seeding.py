"""The purposes of random numbers: each changed purpose changes results, so a test compares them."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from driftlab.platform.core.seeding import PURPOSES

SEEDING = "driftlab.platform.core.seeding"


def leading_words(tree: ast.AST) -> Iterator[str]:
    """Yield the literal first words of the purpose of each call; none if a variable comes first."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("rng_for", "seed_for"):
            words = (word.value if isinstance(word, ast.Constant) else None for word in node.args[1:])
            yield "/".join(itertools.takewhile(lambda word: isinstance(word, str), words))


def test_the_frozen_purposes_are_those_of_the_calls(sources):
    calls = {words for source in sources if source.name != SEEDING for words in leading_words(source.tree)}
    assert calls - {""} == set(PURPOSES)


def test_the_words_of_a_purpose_end_where_it_varies():
    calls = ast.parse("rng_for(seed, 'a', 'b', number, 'c'); seed_for(seed, part); other(seed, 'd')")
    assert list(leading_words(calls)) == ["a/b", ""]
