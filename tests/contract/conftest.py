"""Fixtures of the contracts that members of several families share."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from unittest.mock import patch

import pytest

from driftlab.platform.networks.training import pretrain


@pytest.fixture(scope="module")
def frames_drawn_once() -> Iterator[None]:
    """Draw the frames of the pre-training once, as the networks of all members train on the same ones."""
    with patch.object(pretrain, "_frames", cache(pretrain._frames)):
        yield
