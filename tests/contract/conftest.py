"""Fixtures of the contracts that members of several families share."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from unittest.mock import patch

import pytest
from architectures_factory import once_per_architecture

from driftlab.platform.networks.pruning import family as families
from driftlab.platform.networks.pruning import gating
from driftlab.platform.networks.training import pretrain
from driftlab.platform.scaling import elastic


@pytest.fixture(scope="module")
def frames_drawn_once() -> Iterator[None]:
    """Draw the frames of the pre-training once, as the networks of all members train on the same ones."""
    with patch.object(pretrain, "_frames", cache(pretrain._frames)):
        yield


@pytest.fixture(scope="module")
def channels_found_once() -> Iterator[None]:
    """Find channel groups and gates once per architecture, instead of for each restored family."""
    groups = once_per_architecture(families.groups)
    with (
        patch.object(families, "groups", groups),
        patch.object(elastic, "groups", groups),
        patch.object(gating, "find_sites", once_per_architecture(gating.find_sites)),
    ):
        yield
