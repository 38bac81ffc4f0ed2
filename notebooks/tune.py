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
# # A search of settings
#
# `driftlab tune ams --set size=small` searches the settings of a system and leaves a folder under `runs/`. This
# notebook reads its tables: which trials there were, which of them no other one beats, and what the recommended
# settings gain on seeds that the search has not seen.

# %%
import os

import driftlab
from driftlab.platform.results.figures.notebook import show_search
from driftlab.platform.results.relations.searches import SearchResults

# The folder of a search. Without DRIFTLAB_RUN: the newest run in runs/ of this folder or of one above it.
RUN = os.environ.get("DRIFTLAB_RUN") or driftlab.newest_run()

# %%
run = driftlab.open_run(RUN)
found = SearchResults(run)
run.frame("trials").dropna(axis="columns", how="all")

# %% [markdown]
# ## What the search has gained
#
# The recommended settings and the defaults on held-out seeds, pair by pair. In the search itself the best of many
# trials has a score that is too high (selection bias); in this table it has not.

# %%
show_search(found, "held_out")

# %% [markdown]
# ## The Pareto front
#
# Trials that no other one beats in every objective. The diamond has the defaults.

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
# ## What it took

# %%
show_search(found, "budget")
