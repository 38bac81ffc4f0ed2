"""Write a run for other tools: CSV, and MLflow, TensorBoard or Weights & Biases if they are installed."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from driftlab.errors import RequestError, unknown_name
from driftlab.platform.core.files import atomic_write, write_atomically
from driftlab.platform.results.tables.columns import LIVE_SCORE
from driftlab.platform.results.tables.read import Run, open_run
from driftlab.platform.results.tables.schema import IDENTITY, TABLES, VIEWS

NAMED = (*IDENTITY, "streaming", "adaptation", "scaling", "scheduling", "student", "teacher")  # of a cell
BATCH = 1000  # numbers that MLflow takes at once
MS = 1000  # MLflow counts time in milliseconds


def export(directory: str | Path, target: str, out: str | Path | None = None) -> Path:
    """Write a run folder in the format of another tool; return the folder that holds it."""
    if target not in TARGETS:
        raise unknown_name("format", target, TARGETS)
    run = open_run(directory)
    folder = Path(out).absolute() if out else run.path / "export" / target
    TARGETS[target](run, folder)
    return folder


def _csv(run: Run, folder: Path) -> None:
    """Write every table and view; images become files, and their columns hold the paths."""
    import pyarrow.csv

    folder.mkdir(parents=True, exist_ok=True)
    for name in (*TABLES, *VIEWS):
        with atomic_write(folder / f"{name}.csv") as draft:
            pyarrow.csv.write_csv(_with_files(run.table(name), folder), draft)


def _with_files(table: pa.Table, folder: Path) -> pa.Table:
    """Write the images of a table to files and replace them by the files' paths."""
    for place, field in enumerate(table.schema):
        if pa.types.is_binary(field.type):
            names = [
                None if content is None else _write_image(content, folder, f"{field.name}-{row}.png")
                for row, content in enumerate(table[field.name].to_pylist())
            ]
            table = table.set_column(place, field.name, pa.array(names, pa.string()))
    return table


def _write_image(content: bytes, folder: Path, name: str) -> str:
    (folder / "snapshots").mkdir(exist_ok=True)
    write_atomically(folder / "snapshots" / name, content)
    return f"snapshots/{name}"


def _mlflow(run: Run, folder: Path) -> None:
    """Write an MLflow database with one run per cell: parameters, results, and score over time."""
    mlflow = _package("mlflow")
    folder.mkdir(parents=True, exist_ok=True)
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    name = str(run.spec.get("name") or run.path.name)
    found = client.get_experiment_by_name(name)
    artifacts = (folder / "artifacts").as_uri()
    experiment = found.experiment_id if found else client.create_experiment(name, artifact_location=artifacts)
    for cell, facts, numbers, line in _cells(run):
        started = client.create_run(experiment, start_time=0, run_name=cell)
        record = mlflow.entities.Metric
        metrics = [record(key, value, 0, 0) for key, value in numbers.items()]
        metrics += [record(SERIES, score, int(MS * time_s), step) for step, time_s, score in line]
        params = [mlflow.entities.Param(key, value) for key, value in facts.items() if key != "status"]
        client.log_batch(started.info.run_id, params=params)
        for first in range(0, len(metrics), BATCH):
            client.log_batch(started.info.run_id, metrics=metrics[first : first + BATCH])
        client.set_terminated(started.info.run_id, "FINISHED" if facts["status"] == "done" else "FAILED")


def _tensorboard(run: Run, folder: Path) -> None:
    """Write one TensorBoard folder per cell; its steps are frames and its clock is the virtual one."""
    writer = _package("tensorboardX").SummaryWriter
    for cell, facts, numbers, line in _cells(run):
        with writer(str(folder / cell)) as events:
            events.add_text("cell", "  \n".join(f"{key}: {value}" for key, value in facts.items()), 0, 0)
            for key, value in numbers.items():
                events.add_scalar(f"cell/{key}", value, 0, 0)
            for step, time_s, score in line:
                events.add_scalar(SERIES, score, step, time_s)


def _wandb(run: Run, folder: Path) -> None:
    """Write one offline run of Weights & Biases per cell; nothing is sent before `wandb sync`."""
    wandb = _package("wandb")
    folder.mkdir(parents=True, exist_ok=True)
    project = str(run.spec.get("name") or run.path.name)
    for cell, facts, numbers, line in _cells(run):
        settings = wandb.Settings(console="off", silent=True, save_code=False, disable_git=True, x_disable_stats=True)
        started = wandb.init(
            mode="offline",
            dir=str(folder),
            project=project,
            group=run.path.name,
            name=cell,
            config={key: value for key, value in facts.items() if key != "status"},
            settings=settings,
        )
        for step, time_s, score in line:
            started.log({SERIES: score, "time_s": time_s}, step=step)
        started.summary.update(numbers)
        started.finish(exit_code=0 if facts["status"] == "done" else 1)


def _package(name: str) -> Any:
    """Import an optional package of an export format."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        source = f"'driftlab[{name}]'" if name == "wandb" else name
        raise RequestError(
            f"The Python package '{name}' is not installed, and this export needs it: pip install {source}"
        ) from None


SERIES = f"frames.{LIVE_SCORE}"  # the metric that has a value per frame; without the table it is the mean of a cell
Line = list[tuple[int, float, float]]  # frame, time in seconds, live score


def _cells(run: Run) -> Iterator[tuple[str, dict[str, str], dict[str, float], Line]]:
    """Yield the name, the descriptions, the results and the score over time of each cell."""
    frames = run.frame("frames").dropna(subset=[LIVE_SCORE])
    lines = frames.groupby(["cell", "frame"])[["time_s", LIVE_SCORE]].mean().reset_index()
    by_cell = {str(cell): line for cell, line in lines.groupby("cell")}
    for row in run.table("runs").to_pylist():
        facts = {key: str(row[key]) for key in (*NAMED, "status") if row[key] is not None}
        numbers = {key: float(value) for key, value in row.items() if _is_number(key, value)}
        own = by_cell.get(row["cell"])
        columns = ["frame", "time_s", LIVE_SCORE]
        line = [] if own is None else list(own[columns].itertuples(index=False, name=None))
        yield row["cell"], facts, numbers, line


def _is_number(key: str, value: Any) -> bool:
    return key != "seed" and isinstance(value, int | float) and math.isfinite(value)


TARGETS: Mapping[str, Callable[[Run, Path], None]] = {
    "csv": _csv,
    "mlflow": _mlflow,
    "tensorboard": _tensorboard,
    "wandb": _wandb,
}
