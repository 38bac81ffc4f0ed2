"""Draw unusual values, and change documents, texts and bytes at random."""

from __future__ import annotations

import copy
import datetime
import math
import random
from collections.abc import Iterator
from typing import Any

NUMBERS = (0, 1, -1, 2, 3, 255, 256, 65_536, 2**31, 2**63, 10**30, 0.5, -0.5, 1e-300, 1e-9, 1e308, -1e308, 0.1, 1e6)
STRANGE = (math.inf, -math.inf, math.nan, 10**4000, None, True, False, [], {}, [[]], [None], {"": None}, "", " ", "nan")
WORDS = (
    *(
        "../x",
        "/",
        "/etc/passwd",
        "/dev/zero",
        "/dev/stdin",
        "x" * 5000,
        "é",
        "\N{SNOWMAN}",
        "a\nb",
        "\0",
        "1e5",
        "0x10",
        "²",
    ),
    *("auto", "quick", "ams", "no_custom", "nested", "local", "fixed", "uniform", "exact", "half", "tiny", "teacher"),
    *(
        "streets/running",
        "signs/running",
        "video:x.mp4",
        "set:digits",
        "set:images:.",
        "cuda",
        "jetson-nx",
        "lte",
        "{x}",
    ),
    *(
        "cpu",
        "virtual",
        "wall",
        "tiny.yaml",
        "a=b",
        "a.b.c",
        "*",
        "$HOME",
        "%s",
        "{0}",
        "<b>",
        "'",
        '"',
        "#",
        "!!set",
        "&a",
    ),
)
DATES = (datetime.date(2020, 2, 29), b"bytes", {1: 2}, {None: 1}, {"name": "x"}, {"name": None}, list(range(300)))
POOL = (*NUMBERS, *STRANGE, *WORDS, *DATES)
Path = tuple[str | int, ...]


def value(dice: random.Random) -> Any:
    """Draw an unusual value."""
    return copy.deepcopy(dice.choice(dice.choice((NUMBERS, STRANGE, WORDS, POOL))))


def paths(document: Any, at: Path = ()) -> Iterator[Path]:
    """List every place in a document."""
    parts = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, part in parts:
        yield (*at, key)
        yield from paths(part, (*at, key))


def near(dice: random.Random, old: Any) -> Any:
    """Draw a value of the same kind."""
    if isinstance(old, bool):
        return not old
    if isinstance(old, int | float):
        return dice.choice((old * 2, old + 1, -old, old / 3, float(old), str(old), *NUMBERS))
    if isinstance(old, str):
        return dice.choice((old[:-1], old + "x", old.upper(), old.replace("_", "-"), [old], *WORDS))
    if isinstance(old, list):
        return dice.choice((old * 2, old[:1], old[::-1], [old], dict(enumerate(old))))
    return value(dice)


def spoil(dice: random.Random, document: Any, changes: int) -> Any:
    """Change a few places of a document: other values; missing, new, misspelt or duplicate keys."""
    document = copy.deepcopy(document)
    for _ in range(changes):
        places = list(paths(document))
        if not places:
            break
        *where, key = dice.choice(places)
        part = document
        for step in where:
            part = part[step]
        how = dice.random()
        if how < 0.4:
            part[key] = value(dice)
        elif how < 0.75:
            part[key] = near(dice, part[key])
        elif how < 0.85:
            del part[key]
        elif isinstance(part, dict):
            part[dice.choice((f"{key}s", f"{key}"[:-1], "name", "defaults", value(dice).__str__()[:40]))] = value(dice)
        else:
            part.insert(dice.randrange(len(part) + 1), dice.choice((value(dice), copy.deepcopy(part[key]))))
    return document


SNIPPETS = (
    *(
        "\t",
        "\0",
        "[" * 200,
        "{" * 200,
        "&a [*a]",
        "*a",
        "!!python/object:os.system x",
        "<<: *a",
        "---\n",
        "...",
        ": ",
        "- ",
    ),
    *(
        "? ",
        "|",
        ">",
        "%YAML 9.9\n",
        "\ufeff",
        "9" * 5000,
        "1e999",
        "2020-13-45",
        '"\\ud800"',
        "!!binary x",
        "!!int x",
        "\x85",
    ),
)


def spoil_text(dice: random.Random, text: str) -> str:
    """Change a text at random: cut a part, double it, or insert foreign characters."""
    for _ in range(dice.randint(1, 3)):
        here, there = sorted(dice.randrange(len(text) + 1) for _ in range(2))
        text = dice.choice(
            (
                text[:here],
                text[:here] + dice.choice(SNIPPETS) + text[here:],
                text[:here] + text[min(there, here + 20) :],
                text[:there] + text[here:there][:200] + text[there:],
                text.replace("  ", "\t", 1),
            )
        )
    return text


def spoil_bytes(dice: random.Random, content: bytes) -> bytes:
    """Change bytes at random: flip a bit, or cut, double or replace a part."""
    if not content:
        return dice.randbytes(8)
    here = dice.randrange(len(content))
    flipped = bytes([content[here] ^ (1 << dice.randrange(8))])
    return dice.choice(
        (
            content[:here],
            content[:here] + flipped + content[here + 1 :],
            content[:here] + dice.randbytes(16) + content[here + 16 :],
            content + content,
            content[here:],
            b"",
        )
    )
