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
# # The figures of AMS
#
# *Adaptive Model Streaming* (Khani et al., ICCV 2021) shows its results in three tables and a dozen figures. Each has
# an experiment here and is drawn from the tables of a run with the data for it. One run can have several figures. The
# report of a run shows the same figures.
#
# Run an experiment first, such as `driftlab run ams-fig4`. This notebook may be
# opened in any folder of the project: it searches upwards for `runs/`.

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
view.runs[["setting", "system", "seed", "score_live", "uplink_kbps", "downlink_kbps"]]

# %% [markdown]
# ## Tables 1 and 2: five schemes per street (`ams-table1`, `ams-table2`)

# %%
show(view, "per_workload")

# %% [markdown]
# ## Table 3: which weights to send (`ams-table3`)
#
# In the paper, 5 % of the weights cost 0.73 points of mIoU if gradients select them, 2.9 if they are random, and 8 to 9
# if they are those at one end of the network.

# %%
show(view, "strategies")

# %% [markdown]
# ## Figure 4: score over downlink (`ams-fig4`)
#
# In the paper Just-In-Time needs about ten times the downlink of AMS for the same score, and its line is steeper.

# %%
show(view, "frontier")

# %% [markdown]
# ## Figure 5: gain per frame (`ams-fig5`)
#
# In the paper AMS improves 93 % of the frames, Just-In-Time 82 % and One-Time 67 %.

# %%
show(view, "gains")

# %% [markdown]
# ## Figures 6 and 10: devices that share a server (`ams-clients`)
#
# In the paper a GPU serves 7 devices at a loss of less than one point, and 9 with adaptive training intervals.

# %%
show(view, "clients")

# %% [markdown]
# ## Figure 8: training horizon (`ams-horizon`)
#
# In the paper a short horizon loses far more than a long one when updates are less frequent.

# %%
show(view, "training_horizon")

# %% [markdown]
# ## Figures 3, 9 and 11: both rates (`ams-rates`)
#
# In the paper the sampling rate falls while the car waits at a red light, training intervals grow on a static scene,
# and mean rates spread over their whole range.

# %%
show(view, "rates")
