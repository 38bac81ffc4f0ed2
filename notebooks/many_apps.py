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
# # Many applications that train on one device
#
# Each application runs inference on its stream and may train on it; a scheduler decides which applications train, with
# which training configuration and on which share of the device. Run an experiment first: `driftlab run many-apps` for
# training configurations of two lengths, `driftlab run many-apps-sizes` for surrogates of three sizes,
# `driftlab run ekya-cameras` for two cameras. This notebook may be opened in any folder of the project: it searches
# upwards for `runs/`.

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
view.runs[["setting", "system", "seed", "score_live", "training_j", "labelling_j"]]

# %% [markdown]
# ## Compute shares over time
#
# Lower bars: share for inference. Upper bars: share for labelling, trials and training. Then accuracy over a window,
# and the decision times.

# %%
show(view, "compute_shares")

# %% [markdown]
# ## Training rounds
#
# One row per round: the chosen training configuration and its times, or the reason why nothing was trained.

# %%
rounds = run.frame("updates")
rounds[["cell", "app", "training_config", "label_start_s", "train_start_s", "train_end_s", "isolated_s", "reason"]]

# %% [markdown]
# ## Accuracy over time

# %%
show(view, "accuracy")
