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
# # A search for settings
#
# `driftlab tune ams --set size=small` searches for settings of a system and writes a folder under `runs/`. This
# notebook reads its tables: the trials, the Pareto front, and the gain of the recommended settings on held-out seeds.

# %%
import os

import driftlab
from driftlab.platform.results.figures.notebook import show_search
from driftlab.platform.results.relations.searches import SearchResults

# The folder of a search. Without DRIFTLAB_RUN: the newest search in runs/ of this folder or of one above it.
RUN = os.environ.get("DRIFTLAB_RUN") or driftlab.newest_run(search=True)

# %%
run = driftlab.open_run(RUN)
found = SearchResults(run)
run.frame("trials").dropna(axis="columns", how="all")

# %% [markdown]
# ## Gain of the search
#
# The recommended settings and the defaults on held-out seeds, pair by pair. In the search itself, the score of the best
# of many trials is too high (selection bias); on held-out seeds it is not.

# %%
show_search(found, "held_out")

# %% [markdown]
# ## The Pareto front
#
# Trials that no other trial dominates. The diamond is the trial with the defaults.

# %%
show_search(found, "front")

# %% [markdown]
# ## Progress

# %%
show_search(found, "progress")

# %% [markdown]
# ## Settings
#
# Each line is a trial; the best quarter is coloured. Where the coloured lines meet, the setting matters.

# %%
show_search(found, "parallel")

# %%
show_search(found, "importance")

# %% [markdown]
# ## Budget

# %%
show_search(found, "budget")
