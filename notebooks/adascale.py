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
# # Networks that follow the load: AdaScale
#
# *AdaScale* (Wang et al., 2024) gives a network several operators in each stage and an exit after each stage, and runs
# the path that fits the load of the device. A fixed first exit is fast too, so the figures show accuracy over the share
# of missed deadlines.
#
# Run `driftlab run adascale-loads` first. This notebook may be opened in any folder of the project: it searches upwards
# for `runs/`.

# %%
import os

import driftlab
from driftlab.platform.results.figures.base import view_of
from driftlab.platform.results.figures.notebook import show

# The folder of a run. Without DRIFTLAB_RUN: the newest one in runs/ of this folder or of one above it.
RUN = os.environ.get("DRIFTLAB_RUN") or driftlab.newest_run()

# %%
run = driftlab.open_run(RUN)
view = view_of(run)
view.runs[["setting", "system", "seed", "scaling"]]

# %% [markdown]
# ## Accuracy against missed deadlines
#
# The dashed line joins the exits of the same network. A load-adaptive method should be above it, to the left.

# %%
show(view, "paths")

# %% [markdown]
# ## The load and the network that runs
#
# CPU load of other programs, the load that the device senses, and the path that it runs. Ticks at the top are missed
# deadlines.

# %%
show(view, "load")

# %%
