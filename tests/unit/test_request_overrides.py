"""Overrides: any depth, no missing keys, types kept."""

from __future__ import annotations

import re

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from driftlab.errors import RequestError
from driftlab.platform.core import documents
from driftlab.platform.core.documents import as_yaml, read_yaml
from driftlab.platform.lab.overrides import apply_overrides, merged
from driftlab.platform.lab.read import FOLDER

DOCUMENT = {"a": 1, "b": {"c": 2.0, "d": {"e": "text", "f": None}}, "list": [{"x": 1}, {"x": [10, 20]}]}


def test_the_document_stays_as_it_was():
    before = repr(DOCUMENT)
    apply_overrides(DOCUMENT, ["b.d.e=other", "list.1.x.0=11"])
    assert repr(DOCUMENT) == before


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-3", -3),
        ("3.0", 3.0),
        ("1e-3", 0.001),
        ("1E3", 1000.0),
        ("-2.5e+2", -250.0),
        ("1.e2", 100.0),
        ("true", True),
        ("null", None),
        ("text", "text"),
        ("'3'", "3"),
        ("1e", "1e"),
        ("e3", "e3"),
        ("cuda:1", "cuda:1"),
        ("streets/running", "streets/running"),
        ("video:/a b.mp4", "video:/a b.mp4"),
        ("[1, 2]", [1, 2]),
        ("{name: local}", {"name": "local"}),
        ("[1", "[1"),
        ("a=b", "a=b"),
    ],
)
def test_values_keep_their_types(text, value):
    found = apply_overrides({"a": 0}, [f"a={text}"])["a"]
    assert (found, type(found)) == (value, type(value))


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_number_that_python_prints_is_read(number):
    found = apply_overrides({"a": 0}, [f"a={number!r}"])["a"]
    assert (found, type(found)) == (number, float)


@settings(deadline=None)
@given(st.text())
def test_a_text_that_is_written_is_read_again(text):
    document = {text: [text, {"a": f" {text}"}], "b": None}
    assert read_yaml(as_yaml(document), stored=True) == document


def test_numbers_in_a_file_are_read_alike():
    assert read_yaml("a: 1e-3\nb: [2E+2, 1e2x]") == {"a": 0.001, "b": [200.0, "1e2x"]}


@pytest.mark.parametrize("time", ["12:30:00", "1:30", "-1:30:00.5"])
def test_a_time_of_day_is_not_read_as_a_number_of_seconds(time):
    with pytest.raises(RequestError, match=f"line 2: '{time}' is not a number; write seconds, or put it in quotes"):
        read_yaml(f"a: 1\nb: [{time}]")
    assert read_yaml(f"a: '{time}'") == {"a": time}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", "line 3: 'a' stands in line 1 already; keep one of them"),
        ("a:\n  - {b: 1, c: 2,\n     b: 1}", "line 3: 'b' stands in line 2 already"),
        ("1: a\n1.0: b", "line 2: '1.0' stands in line 1"),
        ("x: &x {a: 1}\ny: {<<: *x, b: 1, b: 2}", "line 2: 'b' stands in line 2"),
    ],
)
def test_a_repeated_key_is_refused(text, message):
    with pytest.raises(RequestError, match=f"^{re.escape(message)}"):
        read_yaml(text)
    with pytest.raises(RequestError, match=r"^--set 'a=\{b: 1, b: 2\}': line 1: 'b' stands"):
        apply_overrides({"a": 0}, ["a={b: 1, b: 2}"])


def test_a_key_may_differ_from_the_one_that_is_merged():
    text = "x: &x {a: 1, b: 1}\ny: &y {<<: *x, b: 2}\nz: {<<: [*y, {c: 1}], b: 3}"
    assert read_yaml(text) == {
        "x": {"a": 1, "b": 1},
        "y": {"a": 1, "b": 2},
        "z": {"a": 1, "b": 3, "c": 1},
    }


TEXTS = (
    *(file.read_text() for file in sorted(FOLDER.glob("ams-*.yaml"))),
    *("a: &x [1e-3, ~, on, 2020-01-02, 'b']\nc: *x", "a: [1, {b: 2}", "a: b: c", "a: 1\nb: 2\na: 3", "? [a]\n: b", ""),
    *(
        "a:\tb",
        "a: |\n  b",
        "a: &x [*x]",
        "[" * 200,
        "a: *b",
        "!!python/object:os.system x",
        "--- a\n--- b",
        "\0",
        "\ufeffa: 1",
        "a: \udc80",
    ),
)


def outcome(text: str, *, stored: bool) -> str:
    try:
        return repr(read_yaml(text, stored=stored))
    except (yaml.YAMLError, RequestError) as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.skipif(len(documents.READERS) == 1, reason="yaml has no scanner in C here")
@pytest.mark.parametrize("stored", [True, False])
def test_a_text_is_read_and_refused_alike_with_and_without_the_scanner_in_c(stored, monkeypatch):
    fast = [outcome(text, stored=stored) for text in TEXTS]
    monkeypatch.setattr(documents, "READERS", documents.READERS[-1:])
    assert [outcome(text, stored=stored) for text in TEXTS] == fast


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("a", "is not KEY=VALUE, such as --set workloads.0.duration_s=30"),
        ("=3", "is not KEY=VALUE"),
        ("a.b=3", "a is 1, which has nothing below it"),
        ("b.d.e.f=3", "b.d.e is 'text', which has nothing below it"),
        ("b.d.f.g=3", "b.d.f is None, which has nothing below it"),
        (
            "list.2.x=3",
            "'2' is no position in a list of 2 (0 to 1). Options such as --system select",
        ),
        ("list.-1.x=3", "'-1' is no position"),
        ("list.x=3", "'x' is no position"),
        ("list.²=3", "'²' is no position"),
        ("list.1.x.2=3", "'2' is no position in a list of 2"),
    ],
)
def test_an_override_of_a_missing_key_is_refused(override, message):
    with pytest.raises(RequestError) as caught:
        apply_overrides(DOCUMENT, [override])
    assert str(caught.value).startswith(f"--set '{override}'")
    assert message in str(caught.value)


def test_merged_lays_mappings_over_each_other_and_replaces_the_rest():
    assert merged({"a": {"b": 1, "c": [1, 2]}, "d": 1}, {"a": {"c": [3]}, "d": {"e": 1}, "f": 2}) == {
        "a": {"b": 1, "c": [3]},
        "d": {"e": 1},
        "f": 2,
    }
