"""Compare two recordings of driftlab: tables bit by bit, documents by key, texts, images, cache keys."""

from __future__ import annotations

import csv
import difflib
import io
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml
from PIL import Image

MAX_VALUE_LENGTH, MAX_LINES = 100, 6
WRAPPED = "eata"  # the member that a policy wraps unless it names another
SEAL, VERSION, TABLE = b"driftlab.seal", b"driftlab.schema", b"driftlab.table"

# Parts of a recording that differ without a difference of the code, each with the reason.
EXCLUDED_COLUMNS = {"host_": "columns of this name hold what this machine happened to do, such as times"}
EXCLUDED_FILES = {
    "run.json": "holds the commit, the time, the processor and versions of packages",
    "log.jsonl": "holds times of this machine",
    ".lock": "is empty",
}
EXCLUDED_SEAL = {
    "files": "hashes whole files, host columns included",
    "hash": "is computed from the spec beside it, which is compared",
}
EXCLUDED_TEXTS = {
    r"(?s)\n## Where it comes from\n.*": "the commit, the time, the processor and versions of packages",
    r'(?s)<dl class="provenance">.*?</dl>': "the same in the page",
    r'(?<="commit": )(null|"[^"]*")': "the commit that was recorded",
}
SORTED_TABLES = {"systems": "its rows are in the order of the names of parameters, which a rename changes"}
MEMBER = re.compile(r"([\w.+-]+)\((\w+=.*)\)", re.DOTALL)  # a member and its parameters
TREE = "tree.txt"  # of a recording: where its tree was


@dataclass(frozen=True)
class Renames:
    """New names by old ones: the renames that a change of the code intends."""

    tables: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)  # `column`, or `table.column` for one table alone
    values: Mapping[str, str] = field(
        default_factory=dict
    )  # of texts in tables and documents; of parts between slashes
    keys: Mapping[str, str] = field(default_factory=dict)  # of documents: `KEY`, or `PARENT.KEY` below one key alone
    params: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # by member; as `name`, or as `name=value`
    texts: Mapping[str, str] = field(default_factory=dict)  # words of reports and of pages
    files: Mapping[str, str] = field(default_factory=dict)  # parts of names of recorded files
    versions: Mapping[str, str] = field(default_factory=dict)  # of schemas, whose descriptions are then not compared

    def table(self, name: str) -> str:
        """Return the new name of a table."""
        return self.tables.get(name, name)

    def column(self, table: str, name: str) -> str:
        """Return the new name of a column."""
        return self.columns.get(f"{table}.{name}", self.columns.get(name, name))

    def value(self, text: str, place: str = "") -> str:
        """Rename a text: the whole, parts between slashes, or parameters as in `nested(batch=16)`."""
        if (new := self.values.get(f"{place}.{text}", self.values.get(text))) is not None:
            return new
        if call := MEMBER.fullmatch(text):
            return self.member(*call.groups())
        return "/".join(self.values.get(part, part) for part in text.split("/"))

    def member(self, name: str, given: str) -> str:
        """Rename the parameters in a member's text, `name(a=1, b=2)`, and sort them by the new names."""
        parts = re.split(r", (?=\w+=)", given)  # of a wrapped member's parameters, each stands in quotes: no `, name=`
        wrapped = next((part.partition("=")[2] for part in parts if part.startswith("member=")), WRAPPED)
        new = [self.param(name, self._inside(wrapped, part)) for part in parts]
        new.sort(key=lambda part: part.partition("=")[0])
        return f"{self.values.get(name, name)}({', '.join(new)})"

    def param(self, member: str, text: str) -> str:
        """Return `name` or `name=value` with the new name and value of a member's parameter."""
        names = self.params.get(member, {})
        if text in names:
            return names[text]
        name, equals, value = text.partition("=")
        return f"{names.get(name, self.keys.get(name, name))}{equals}{self.values.get(value, value)}"

    def _inside(self, wrapped: str, text: str) -> str:
        """Return a parameter's text in which quoted `name=value` of a wrapped member have new names."""
        return re.sub(r"(?<=')[^'=]+=[^']*(?=')", lambda found: self.param(wrapped, found[0]), text)

    def text(self, text: str) -> str:
        """Return a text whose words have new names."""
        for old, new in self.texts.items():
            text = re.sub(rf"(?<!\w){re.escape(old)}(?!\w)", lambda _, new=new: new, text)
        return text

    def file(self, name: str) -> str:
        """Return the new name of a recorded file."""
        for old, new in self.files.items():
            name = name.replace(old, new)
        return name

    def key(self, parent: str, key: str) -> str:
        """Return the new name of a key below another key."""
        return self.keys.get(f"{parent}.{key}", self.keys.get(key, key))

    def document(self, part: Any, parent: str = "") -> Any:
        """Return a document with new keys and values."""
        if isinstance(part, Mapping):
            entries = dict(self._entry(part, key, value, parent) for key, value in part.items())
            return in_order(entries) if self.params and "name" in part and list(part) != list(entries) else entries
        if isinstance(part, list):
            return [self.document(value, parent) for value in part]
        if not isinstance(part, str):
            return part
        return self.value(part, parent)

    def _entry(self, part: Mapping[str, Any], key: Any, value: Any, parent: str) -> tuple[Any, Any]:
        """Return a key of a document and its value with new names, a member's parameters by its `name`."""
        names = self.params.get(part["name"], {}) if isinstance(part.get("name"), str) else {}
        new = self.document(value, key)
        if isinstance(value, list):  # of a wrapped member's parameters
            wrapped = part.get("member", WRAPPED)
            new = [self.param(wrapped, one) if isinstance(one, str) and "=" in one else one for one in new]
        elif isinstance(value, str) and f"{key}={value}" in names:
            new = names[f"{key}={value}"].partition("=")[2]
        elif names and key == "defaults" and isinstance(value, Mapping):
            new = dict(
                sorted(self._entry({**value, "name": part["name"]}, name, one, key) for name, one in value.items())
            )
        return names.get(key, self.key(parent, key)), new


def in_order(member: dict[str, Any]) -> dict[str, Any]:
    """Sort a member's parameters by their new names, as a spec does."""
    ends = {"name": 0, "defaults": 2}
    return dict(sorted(member.items(), key=lambda pair: (ends.get(pair[0], 1), pair[0])))


def read_renames(file: Path) -> Renames:
    """Read a file of renames."""
    given = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    return Renames(**{kind: names or {} for kind, names in given.items()})


def compare(old: Path, new: Path, renames: Renames) -> Iterator[str]:
    """Yield every difference between two recordings, one line each."""
    for part in ("runs", "texts", "pictures", "csv"):
        left = {renames.file(name): path for name, path in files_of(old / part).items()}
        right = files_of(new / part)
        yield from missing(part, left, right)
        for name in sorted(left.keys() & right.keys()):
            for line in file_differences(left[name], right[name], (old, new), renames):
                yield f"{part}/{name}: {line}"
    for name in sorted(folders_of(old) & folders_of(new)):
        for line in run_differences(old / "runs" / name, new / "runs" / name, renames):
            yield f"run {name}, {line}"
    yield from cache_differences(old / "cache", new / "cache", renames)


def files_of(folder: Path) -> dict[str, Path]:
    """Find files below a folder, tables aside."""
    found = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: path for name, path in found.items() if path.name not in EXCLUDED_FILES and path.suffix != ".parquet"}


def folders_of(recording: Path) -> set[str]:
    """List the runs of a recording."""
    return {path.name for path in (recording / "runs").iterdir()}


def missing(what: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Name the parts that only one side has."""
    for names, side in ((old.keys() - new.keys(), "old"), (new.keys() - old.keys(), "new")):
        for name in sorted(names):
            yield f"{what} '{name}': only in the {side} recording"


def file_differences(old: Path, new: Path, roots: tuple[Path, Path], renames: Renames) -> Iterator[str]:
    """Compare two files by their type."""
    if old.suffix == ".png":
        yield from picture_differences(old, new)
        return
    texts = [plain(path.read_text(encoding="utf-8"), root) for path, root in zip((old, new), roots, strict=True)]
    if old.suffix in (".yaml", ".json"):
        read = yaml.safe_load if old.suffix == ".yaml" else json.loads
        yield from document_differences(renames.document(read(texts[0])), read(texts[1]))
    elif old.suffix == ".csv":
        yield from text_differences(csv_text(texts[0], old.stem, renames), csv_text(texts[1], new.stem, Renames()))
    else:
        yield from text_differences(renames.text(texts[0]), texts[1])


def csv_text(text: str, table: str, renames: Renames) -> str:
    """Return an exported table with new names of its columns and values, one line per row."""
    head, *rows = csv.reader(io.StringIO(text))
    lines = [[renames.column(table, name) for name in head], *([renames.value(value) for value in row] for row in rows)]
    return "\n".join(map(",".join, lines))


def plain(text: str, recording: Path) -> str:
    """Return a text without excluded parts and without the folders of the recording and its tree."""
    tree = (recording / TREE).read_text(encoding="utf-8")
    for folder, name in ((str(recording.resolve()), "RECORDING"), (tree, "TREE")):
        text = text.replace(folder, name)
    for pattern in EXCLUDED_TEXTS:
        text = re.sub(pattern, '""', text)
    return text


def text_differences(old: str, new: str) -> Iterator[str]:
    """Show the first lines that differ."""
    found = list(difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=0))[2:]
    changed = [line for line in found if not line.startswith("@@")]
    if changed:
        more = f" | and {len(changed) - MAX_LINES} lines more" if len(changed) > MAX_LINES else ""
        yield f"text differs: {' | '.join(map(shown, changed[:MAX_LINES]))}{more}"


def document_differences(old: Any, new: Any, place: str = "") -> Iterator[str]:
    """Name every key whose value, type or place among its neighbours differs."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        yield from (f"{place or 'document'}: {line}" for line in missing("key", old, new))
        common = [[key for key in one if key in other] for one, other in ((old, new), (new, old))]
        if common[0] != common[1]:
            yield f"{place or 'document'}: keys in another order: {common[0]} vs {common[1]}"
        for key in common[0]:
            yield from document_differences(old[key], new[key], f"{place}.{key}" if place else str(key))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (ours, theirs) in enumerate(zip(old, new, strict=True)):
            yield from document_differences(ours, theirs, f"{place}.{number}")
    elif repr(old) != repr(new):  # so that 1 is not 1.0, nor True
        yield f"{place}: {shown(old)} vs {shown(new)}"


def picture_differences(old: Path, new: Path) -> Iterator[str]:
    """Count the pixels that differ."""
    ours, theirs = (np.asarray(Image.open(path)) for path in (old, new))
    if ours.shape != theirs.shape:
        yield f"{ours.shape} vs {theirs.shape} pixels"
    elif unequal := int((ours != theirs).any(axis=-1).sum()):
        yield f"{unequal} of {ours.shape[0] * ours.shape[1]} pixels differ"


def run_differences(old: Path, new: Path, renames: Renames) -> Iterator[str]:
    """Compare the tables of two runs; report a changed column once, with its first different cell."""
    left = {renames.table(name): (name, folder) for name, folder in table_folders(old).items()}
    right = table_folders(new)
    yield from missing("table", left, right)
    for name in sorted(left.keys() & right.keys()):
        before, folder = left[name]
        ours, theirs = cells_in(folder, before, renames), cells_in(right[name], name, Renames())
        yield from missing(f"table {name}, cell", ours, theirs)
        found: defaultdict[str, list[str]] = defaultdict(list)
        for cell in sorted(ours.keys() & theirs.keys()):
            pair = (ours[cell], theirs[cell])
            for what, line in table_differences(*(map(undescribed, pair) if renames.versions else pair)):
                found[what].append(f"{cell}: {line}")
        for what, lines in found.items():
            yield f"table {name}, {what}: in {len(lines)} of {len(ours)} cells, first {lines[0]}"


def table_folders(run: Path) -> dict[str, Path]:
    """Find the tables of a run."""
    return {path.name: path for path in sorted((run / "tables").iterdir()) if path.is_dir()}


def cells_in(folder: Path, table: str, renames: Renames) -> dict[str, pa.Table]:
    """Read a table cell by cell; a file without a cell goes by its name."""
    names = {path.stem: path for path in folder.parent.glob("runs/*.parquet")}
    found = {}
    for path in sorted(folder.glob("*.parquet")):
        known = pq.read_table(names[path.stem], columns=["cell"]) if path.stem in names else None
        cell = known["cell"][0].as_py() if known is not None and len(known) else path.stem
        found[renames.value(cell)] = renamed(pq.ParquetFile(path).read(), table, renames)
    return found


def renamed(table: pa.Table, name: str, renames: Renames) -> pa.Table:
    """Give a table the new names of its columns and values."""
    if renames.values or renames.params:
        for place, column in enumerate(table.schema):
            if pa.types.is_string(column.type):
                values = [
                    None if text is None else renames.value(text, column.name) for text in table[place].to_pylist()
                ]
                table = table.set_column(place, column, pa.array(values, column.type))
    if name == "systems" and renames.params:
        table = renamed_parameters(table, renames)
    if name in SORTED_TABLES:
        table = table.sort_by(
            [(column.name, "ascending") for column in table.schema if pa.types.is_string(column.type)]
        )
    fields = [renamed_field(column, name, renames) for column in table.schema]
    notes = dict(table.schema.metadata or {})
    for note, names in ((TABLE, renames.tables), (VERSION, renames.versions)):
        if note in notes:
            notes[note] = names.get(notes[note].decode(), notes[note].decode()).encode()
    if SEAL in notes:
        document = renames.document(json.loads(notes[SEAL]))
        notes[SEAL] = json.dumps(document, sort_keys=True).encode()  # as its writer sorts it
    return pa.Table.from_arrays(table.columns, schema=pa.schema(fields, notes or None))


def renamed_parameters(table: pa.Table, renames: Renames) -> pa.Table:
    """Give the table of systems the new names of members' parameters and of their values."""
    names, values = [], []
    for row in table.select(["member", "parameter", "value"]).to_pylist():
        value = json.loads(row["value"] or "null")
        name, _, text = renames.param(row["member"], f"{row['parameter']}={value}").partition("=")
        names.append(name)
        values.append(json.dumps(text) if isinstance(value, str) else row["value"])
    for column, new in (("parameter", names), ("value", values)):
        table = table.set_column(table.schema.names.index(column), column, pa.array(new, pa.string()))
    return table


def renamed_field(column: pa.Field, table: str, renames: Renames) -> pa.Field:
    """Give a column its new name, and its notes the new words."""
    notes = {key: renames.text(note.decode()).encode() for key, note in (column.metadata or {}).items()}
    return column.with_name(renames.column(table, column.name)).with_metadata(notes or None)


def undescribed(table: pa.Table) -> pa.Table:
    """Return a table without its columns' descriptions, which a new schema version may change."""
    fields = [pa.field(column.name, column.type) for column in table.schema]
    notes = {key: note for key, note in (table.schema.metadata or {}).items() if key in (SEAL, VERSION, TABLE)}
    return pa.Table.from_arrays(table.columns, schema=pa.schema(fields, notes or None))


def table_differences(old: pa.Table, new: pa.Table) -> Iterator[tuple[str, str]]:
    """Yield the differences of a cell's table: columns, their order and types, notes, rows, values."""
    ours, theirs = ([name for name in table.column_names if not is_excluded(name)] for table in (old, new))
    for line in missing("column", dict.fromkeys(ours), dict.fromkeys(theirs)):
        what, _, side = line.rpartition(": ")
        yield what, side
    common = [[name for name in one if name in other] for one, other in ((ours, theirs), (theirs, ours))]
    if common[0] != common[1]:
        first = next(pair for pair in zip(*common, strict=True) if pair[0] != pair[1])
        yield "order of columns", f"{first[0]} vs {first[1]}"
    yield from seal_differences(*((table.schema.metadata or {}) for table in (old, new)))
    for name in common[0]:
        yield from field_differences(old.schema.field(name), new.schema.field(name))
    if len(old) != len(new):
        yield "number of rows", f"{len(old)} vs {len(new)}"
        return
    for name in common[0]:
        if old.schema.field(name).type == new.schema.field(name).type:
            yield from ((f"column {name}", line) for line in value_differences(old[name], new[name]))


def is_excluded(column: str) -> bool:
    """Return whether a column holds times or processes of this machine."""
    return column.startswith(tuple(EXCLUDED_COLUMNS))


def field_differences(old: pa.Field, new: pa.Field) -> Iterator[tuple[str, str]]:
    """Compare the type and the notes of a column."""
    for what, ours, theirs in (
        ("type", str(old.type), str(new.type)),
        ("nullable", old.nullable, new.nullable),
        ("notes", old.metadata, new.metadata),
    ):
        if ours != theirs:
            yield f"{what} of column {old.name}", f"{shown(ours)} vs {shown(theirs)}"


def seal_differences(old: Mapping[bytes, bytes], new: Mapping[bytes, bytes]) -> Iterator[tuple[str, str]]:
    """Compare the notes of a table, and the origin of its cell."""
    for key in sorted(old.keys() | new.keys()):
        ours, theirs = old.get(key, b"{}"), new.get(key, b"{}")
        if ours == theirs:
            continue
        if key != SEAL:
            yield f"note {key.decode()}", f"{shown(ours)} vs {shown(theirs)}"
            continue
        for line in document_differences(*(without(json.loads(text), EXCLUDED_SEAL) for text in (ours, theirs))):
            place, _, values = line.partition(": ")
            yield f"seal, {place}", values


def without(part: Any, keys: Mapping[str, str]) -> Any:
    """Return a document without some keys of its upper two levels."""
    return {
        key: {inner: value[inner] for inner in value if inner not in keys} if isinstance(value, Mapping) else value
        for key, value in part.items()
        if key not in keys
    }


def value_differences(old: pa.ChunkedArray, new: pa.ChunkedArray) -> Iterator[str]:
    """Name the first row that differs; a float is compared by its bits."""
    ours, theirs = (bits(column.combine_chunks()) for column in (old, new))
    if ours.equals(theirs):
        return
    unequal = pc.or_(
        pc.fill_null(pc.not_equal(ours, theirs), False),
        pc.xor(pc.is_null(ours), pc.is_null(theirs)),
    )
    row, count = pc.index(unequal, True).as_py(), pc.sum(unequal).as_py()
    values = " vs ".join(shown(column[row].as_py()) for column in (old, new))
    yield f"row {row}: {values} ({count} of {len(old)} rows differ)"


def bits(array: pa.Array) -> pa.Array:
    """See a float as its bits, so that -0.0 differs from 0.0 and NaN equals itself."""
    widths = {pa.float64(): pa.int64(), pa.float32(): pa.int32()}
    return array.view(widths[array.type]) if array.type in widths else array


def cache_differences(old: Path, new: Path, renames: Renames) -> Iterator[str]:
    """Compare the keys, recipes and digests of built networks; report a changed key with its recipe."""
    left, right = (recipes_of(folder) for folder in (old, new))
    left = {renames.file(name): renames.document(recipe) for name, recipe in left.items()}
    by_digest = {recipe["digest"]: name for name, recipe in right.items() if name not in left}
    for name in sorted(left.keys() - right.keys()):
        other = by_digest.pop(left[name]["digest"], None)
        if other is None:
            yield f"cache key {name}: only in the old recording"
            continue
        changes = list(document_differences(left[name], right[other]))
        yield f"cache key {name}: {other} for the same weights; {'; '.join(changes[:MAX_LINES])}"
    yield from (f"cache key {name}: only in the new recording" for name in sorted(by_digest.values()))
    for name in sorted(left.keys() & right.keys()):
        yield from (f"cache key {name}: {line}" for line in document_differences(left[name], right[name]))


def recipes_of(cache: Path) -> dict[str, Any]:
    """Read the recipes of built networks by their keys."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(cache.glob("*.json"))}


def shown(value: Any) -> str:
    """Shorten a value for a line."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= MAX_VALUE_LENGTH else f"{text[:MAX_VALUE_LENGTH]}…"
