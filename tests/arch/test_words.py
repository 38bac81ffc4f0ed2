"""The wording rules of CONTRIBUTING.md: their counts may only fall."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest
import yaml
from words import check_page, check_python, check_yaml, comments, findings

LIMITS = Path(__file__).with_name("word_limits.yaml")
SLACK = 5  # by how much a limit may exceed the count before it must be lowered


@pytest.mark.slow
def test_wording_does_not_get_worse():
    found = findings()
    counts, limits = Counter(one.pattern for one in found), yaml.safe_load(LIMITS.read_text("utf-8"))
    over = {pattern: counts[pattern] for pattern, limit in limits.items() if counts[pattern] > limit}
    assert over == {}, "list the places with: python tests/arch/words.py " + " ".join(over)
    assert set(counts) <= set(limits)
    stale = {pattern: counts[pattern] for pattern, limit in limits.items() if counts[pattern] < limit - SLACK}
    assert stale == {}, f"lower these limits in {LIMITS.name}"


def test_a_file_that_is_not_committed_yet_is_checked(tmp_path: Path):
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    (tmp_path / ".gitignore").write_text("ignored.py\n", "utf-8")
    for name in ("new.py", "ignored.py"):
        (tmp_path / name).write_text('"""Tell the driver."""\n', "utf-8")
    assert [(one.pattern, one.place) for one in findings(tmp_path)] == [("opening", "new.py:1")]


def test_comments_are_found_outside_of_texts():
    text = '''"""A # in a text.

It's no comment # either."""
a = "# no", '#', r"\\\\"  # one
b = f"{a!r:#>9}" # two
'''
    assert [*comments(text)] == [(4, "# one"), (5, "# two")]


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("opening", '"""Tell the driver."""'),
        ("summary", f'"""Return {"very " * 20}much."""'),
        ("what", "x = 1  # what the device has sent"),
        ("mind", "x = 1  # the server knows the rest"),
        ("mind", "x = 1  # as it was asked"),
        ("vocabulary", "raise ValueError('the answer of a tenant')"),
        ("name", "def answer(): ..."),
        ("name", "wish_s = 1"),
        ("test_name", "def test_it_is_told(): ..."),
    ],
)
def test_wording_that_is_ruled_out_is_found(pattern: str, text: str):
    assert pattern in {one.pattern for one in check_python("platform/x.py", text)}


@pytest.mark.parametrize(
    "text",
    [
        '"""Return the device."""',
        "x = 1  # the authors know the rest",
        "x = 1  # What is sent?",
        "x = 1  # `answer` is a column",
        "def predict(): ...",
    ],
)
def test_plain_wording_is_not_found(text: str):
    assert list(check_python("platform/x.py", text)) == []


def test_pages_are_checked_outside_code_and_generated_blocks():
    long = " ".join(["word"] * 36) + "."
    assert {one.pattern for one in check_page("x.md", long)} == {"sentence"}
    generated = "<!-- claims A -->\n| what is told |\n<!-- end of claims -->\n```\nwhat\n```\n"
    assert list(check_page("x.md", generated)) == []


@pytest.mark.parametrize(
    "text",
    [
        "# It gives what the device\n# has sent.\nkey: 1\n",
        'key: "a # b"  # what the device has sent\n',
        "# The first line.\n#\n#   driftlab run x   what is told\n#\n# The server knows it.\n",
        f"# One sentence of {'many ' * 20}\n# {'words ' * 20}.\n",
    ],
    ids=["head", "inline", "after commands", "long"],
)
def test_comments_of_yaml_are_checked(text: str):
    assert {one.pattern for one in check_yaml("x.yaml", text)} & {"what", "mind", "sentence"}


def test_keys_and_values_of_yaml_are_not_checked():
    text = "what: 'what is told # what'\nkey: a#what  # a plain comment\n# Plain words.\n#\n# More.\n"
    assert list(check_yaml("x.yaml", text)) == []
