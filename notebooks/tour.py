# ---
# jupyter:
#   jupytext:
#     formats: py:percent
#     notebook_metadata_filter: -jupytext.text_representation
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A tour
#
# Run a small experiment, read its tables, compare two systems, plot, and watch a clip, in about two minutes. Any other
# run opens with `driftlab.open_run("runs/NAME")`, the newest one with `driftlab.open_run(driftlab.newest_run())`.

# %%
import driftlab

CHANGES = ["seeds=[0, 1, 2]", "snapshots=24"]
run = driftlab.open_run(driftlab.run("quick", CHANGES).directory)
run

# %% [markdown]
# ## Tables
#
# One row per cell: a system on a workload with a seed. `docs/tables.md` lists all tables and columns; `run.sql` queries
# them.

# %%
run.frame("runs")[["system", "workload", "seed", "score_live", "score", "uplink_kbps", "downlink_kbps"]]

# %% [markdown]
# ## Two systems
#
# The mean difference over paired seeds, with a 95 % interval.

# %%
run.compare("one_time", "no_custom")

# %% [markdown]
# ## Accuracy over time
#
# A figure of the report, in its colours. The other notebooks draw further ones.

# %%
from driftlab.platform.results.figures.base import view_of
from driftlab.platform.results.figures.notebook import show

view = view_of(run)
show(view, "accuracy")

# %% [markdown]
# ## A clip
#
# One stream in ten seconds: the frame, the truth, the best method and the network without adaptation.

# %%
from driftlab.platform.results.report.clip import show_clip

show_clip(view)
