"""Replace slow functions in the tests' processes; Python imports this module at its start."""

from __future__ import annotations

import os

os.fsync = lambda file: None  # a run waits for the disk hundreds of times; tests that cut the power record each call
