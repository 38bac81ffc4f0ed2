"""Prints docs/tables.md from the schema."""

from __future__ import annotations

import sys

import pyarrow as pa

from driftlab.platform.results.schema import FIRST, SCHEMA_VERSION, TABLES, note

_PREAMBLE = f"""# Tables

A run is a folder; everything a person looks at is read from its tables.

```
runs/<name>-<time>/
    spec.yaml                        what was asked for, and every parameter that was not given
    run.json                         versions, machine, commit: where it came from
    tables/<table>/<cell>.parquet    one file per table and cell; a cell counts once its `runs` file is there
    report.html  report.md           drawn from the tables
    log.jsonl
```

```python
import driftlab

run = driftlab.open_run("runs/demo-...")
run.table("frames")  # pyarrow.Table
run.frame("runs")  # pandas.DataFrame
run.sql("select system, avg(score) from runs group by 1")  # DuckDB; every table is a view
```

Times are seconds of virtual time from the start of the session, bits are counted in SI (1 kbit = 1 000 bit), and what
was not measured is null. Scores go from 0 to 1; what they are follows from the student's task: mIoU in segmentation,
accuracy in classification, F1 at an overlap of one half in detection. Columns that begin with `host_` hold what one
machine happened to do; all others depend on the experiment and its seed alone, and `driftlab diff A B` compares them
bit by bit.

Schema version {SCHEMA_VERSION}. Runs of every version {FIRST}.x open. In older runs a newer column is null, or holds
what its meaning says, and a newer table is empty. Columns of a newer {FIRST}.x are left out. A newer major version is
refused. A cell of another version counts as not finished: `driftlab run --resume` runs it again.
`spec.yaml` holds every parameter of every system: beside the member's name those that were given, under `defaults` the
others. So a run can be read when members have changed.

This page is printed by `python -m driftlab.platform.results.tables_page`.
"""


def page() -> str:
    """Write docs/tables.md."""
    parts = [_PREAMBLE]
    for name, schema in TABLES.items():
        parts.append(f"\n## `{name}`\n\n{note(schema, 'meaning')}\n")
        parts.append("| column | type | unit | meaning | null when |\n|---|---|---|---|---|")
        for field in schema:
            cells = (f"`{field.name}`", str(field.type), note(field, "unit"), _meaning(field), note(field, "null"))
            parts.append("| " + " | ".join(cell or " " for cell in cells) + " |")
    return "\n".join(parts) + "\n"


def _meaning(field: pa.Field) -> str:
    fill = note(field, "before")
    return note(field, "meaning") + (f"; {fill} in older runs" if fill else "")


if __name__ == "__main__":
    sys.stdout.write(page())
