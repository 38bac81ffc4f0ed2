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
# # Many applications that learn on one device
#
# Each application answers a stream of its own and may learn from it; a scheduler decides which of them learn, in which
# way and on which share of the device. Run an experiment first: `driftlab run many-apps` for schedulers over ways of
# two lengths, `driftlab run many-apps-sizes` for surrogates of three sizes, `driftlab run ekya-cameras` for two
# cameras. This notebook may be opened in any folder of the project: it searches upwards for `runs/`.

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
view.runs[["setting", "system", "seed", "score", "training_j", "labelling_j"]]

# %% [markdown]
# ## Who learns when
#
# Below the share that answers frames, on top of it the share that labels, tries ways out and trains. Then accuracy over
# a window, and how long decisions took.

# %%
show(view, "compute_shares")

# %% [markdown]
# ## What was offered and what was chosen
#
# One row per round: the chosen way, when it trained, or why nothing was learned.

# %%
rounds = run.frame("updates")
rounds[["cell", "app", "training_config", "label_start_s", "train_start_s", "train_end_s", "isolated_s", "reason"]]

# %% [markdown]
# ## Accuracy over time

# %%
show(view, "accuracy")
