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
# # Domains: what adapting gains, and what it costs
#
# A stream shows one domain after the other, and members adapt to them without labels. Two experiments ask what that is
# worth: `elasticdnn-domains` compares a network that is cut for each domain with members that adapt one as it is, and
# `tta-streams` lets members learn on streams that do not wait.
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
# In the paper a surrogate answers by 23 points better than rivals of its size and adapts in a thirty-fifth of their
# time; it answers about as well as rivals that adapt the whole network, in a hundred-and-fortieth of theirs. Where
# domains come back, the last panel shows what was forgotten meanwhile.

# %%
show(view, "domains")

# %% [markdown]
# ## What time costs (`tta-streams`)
#
# Tempora finds that the member which is best without time loses most places with it, and that ranks agree again as
# patience grows.

# %%
show(view, "utility")

# %% [markdown]
# ## Any two systems, pair by pair

# %%
names = list(view.styles)
run.compare(names[1], names[0])
