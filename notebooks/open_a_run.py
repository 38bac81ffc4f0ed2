# ---
# jupyter:
#   jupytext:
#     formats: py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Open a run
#
# This notebook reads the tables of a run and draws the figures of its report. It uses these tables only, so you can
# compute everything here from them yourself (`docs/tables.md` lists their columns).
#
# Open it with `jupytext --to notebook notebooks/open_a_run.py`, or directly in an editor that supports percent cells.

# %%
import os

import matplotlib.pyplot as plt

import driftlab
from driftlab.platform.results.figures import plots
from driftlab.platform.results.figures.base import view_of

# The folder of a run. Without DRIFTLAB_RUN: the newest one in runs/ of this folder or of one above it.
RUN = os.environ.get("DRIFTLAB_RUN") or driftlab.newest_run()

# %%
run = driftlab.open_run(RUN)
runs = plots.with_settings(run.frame("runs"))
frames = run.frame("frames")
styles = view_of(run).styles  # the colours of its report
runs[["setting", "system", "seed", "status", "score_live", "score", "uplink_kbps", "downlink_kbps"]]

# %% [markdown]
# ## Scores
#
# Tables can also be queried in SQL; every table of the run is a view. The mean over seeds, best first:

# %%
run.sql("""
    select workload, system, count(*) as n, avg(score_live) as score_live, avg(uplink_kbps) as up,
        avg(downlink_kbps) as down
    from runs where status = 'done' group by workload, system order by workload, score_live desc
""").to_pandas().round(3)

# %% [markdown]
# ## Accuracy over time
#
# Thin lines: seeds. Strong line: their mean. Vertical rules: scene changes.

# %%
for setting, here in runs[runs["status"] == "done"].groupby("setting"):
    figure, axis = plt.subplots(figsize=(9, 3.5), layout="constrained")
    plots.accuracy(axis, here, frames[frames["cell"].isin(here["cell"])], styles)
    axis.set_title(setting, loc="left")
    axis.legend(frameon=False, ncols=4, loc="upper left", bbox_to_anchor=(0, -0.15))
    plt.show()

# %% [markdown]
# ## Scores with intervals, and traffic

# %%
for setting, here in runs[runs["status"] == "done"].groupby("setting"):
    height = 0.8 + 0.4 * here["system"].nunique()  # inches
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, height), layout="constrained")
    plots.scores(left, here, styles)
    plots.traffic(right, here, styles)
    figure.suptitle(setting, x=0.01, ha="left")
    plt.show()

# %% [markdown]
# ## Frames and predictions
#
# The table `snapshots` holds pictures as PNG bytes.

# %%
import io

snapshots = run.frame("snapshots").merge(runs[["cell", "system", "seed", "setting"]], on="cell")
for setting, here in snapshots[snapshots["seed"] == snapshots["seed"].min()].groupby("setting"):
    moments = sorted(set(here["time_s"]))
    systems = [name for name in styles if name in set(here["system"])]
    figure, axes = plt.subplots(
        len(systems) + 1, len(moments), figsize=(9, 1.2 * (len(systems) + 1)), squeeze=False, layout="constrained"
    )
    for column, moment in enumerate(moments):
        now = here[here["time_s"] == moment].drop_duplicates("system").set_index("system")
        axes[0, column].imshow(plt.imread(io.BytesIO(now["image"].iloc[0])))
        axes[0, column].set_title(f"{moment:g} s", fontsize=9)
        for row, system in enumerate(systems, start=1):
            if system in now.index:
                axes[row, column].imshow(plt.imread(io.BytesIO(now.loc[system, "prediction"])))
    for row, label in enumerate(["frame", *systems]):
        axes[row, 0].set_ylabel(label, rotation=0, ha="right", va="center", fontsize=9)
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
    figure.suptitle(setting, x=0.01, ha="left")
    plt.show()
