"""Make the tests' processes faster; Python imports this module at its start."""

from __future__ import annotations

import gc
import os

gc.set_threshold(20_000, 20, 20)  # searches for garbage take a tenth of the time of imports, and 5 % of the tests'
os.fsync = lambda file: None  # a run waits for the disk hundreds of times; tests that cut the power record each call
