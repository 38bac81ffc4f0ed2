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
# # Domains: gains and costs of adaptation
#
# A stream shows one domain after the other, and members adapt to them without labels. Two experiments measure the gain:
# `elasticdnn-domains` compares a network that is pruned for each domain with members that adapt an unchanged network,
# and `tta-streams` trains members on streams that do not wait.
#
# Run one of them first, such as `driftlab run elasticdnn-domains`. This notebook may be opened in any folder of the
# project: it searches upwards for `runs/`.

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
view.runs[["setting", "system", "seed", "adaptation", "scaling"]]

# %% [markdown]
# ## Before and after, accuracy against time and energy (`elasticdnn-domains`)
#
# In the paper a surrogate is 23 points more accurate than baselines of its size and adapts 36 times faster; it is about
# as accurate as baselines that adapt the whole network, and adapts 145 times faster. If domains recur, the last panel
# shows forgetting.

# %%
show(view, "domains")

# %% [markdown]
# ## Time pressure (`tta-streams`)
#
# Tempora finds that the best member without time pressure is not the best one under most time pressures, and that ranks
# agree again as patience grows.

# %%
show(view, "utility")

# %% [markdown]
# ## Any two systems, pair by pair

# %%
names = list(view.styles)
run.compare(names[1], names[0])
