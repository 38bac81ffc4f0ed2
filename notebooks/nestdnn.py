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
# # The figures of NestDNN
#
# *NestDNN* (Fang et al., MobiCom 2018) builds one network with several capacities and shares a device among
# applications. Each of its figures and tables has an experiment here and is drawn from the tables of a run with the
# data for it. One run can have several figures. The report of a run shows the same figures.
#
# Run an experiment first, such as `driftlab run nestdnn-fig10`. This notebook may be
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
view.runs[["setting", "system", "seed", "scaling", "scheduling"]]

# %% [markdown]
# ## Figure 3: pruning one layer (`nestdnn-fig3`)
#
# In the paper half of the filters of the last layer can be removed without loss if the triplet response residual ranks
# them, and with a loss of 14 points if the L1 norm does.

# %%
show(view, "pruning")

# %% [markdown]
# ## Figures 6 and 7, Table 3: accuracy over size (`nestdnn-fig6`)
#
# In the paper nested networks are more accurate than independent ones of their size, by 5 points on average and by 6.7
# points if they are small, and all sizes together need half of the memory.

# %%
show(view, "capacity")

# %% [markdown]
# ## Figures 10 and 11: accuracy against frame rate, and energy (`nestdnn-fig10`)
#
# In the paper NestDNN has twice the frame rate at the accuracy of the status quo, is 4 points more accurate at its
# frame rate, and needs 1.5 to 1.7 times less energy at the knee.

# %%
show(view, "tradeoff")

# %% [markdown]
# ## Figure 9: running applications (`nestdnn-fig9`, and every run in which applications arrive and depart)
#
# In the paper six applications run at a time more often than five, five more often than four, and so on.

# %%
show(view, "allocation_timeline")

# %% [markdown]
# ## Figure 8, Tables 4 and 5: loading and dropping networks (`nestdnn-fig8`)
#
# In the paper nested networks drop no bytes in switches to a larger network and load none in switches to a smaller one.
# First the switches of the schedulers; then, as in the paper, bytes and energy of random switches.

# %%
show(view, "switching_cost")

# %%
show(view, "switching")
