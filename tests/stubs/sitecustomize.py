"""Replace slow functions and imports in the tests' processes; Python imports this module at its start."""

from __future__ import annotations

import os
import sys

os.fsync = lambda file: None  # a run waits for the disk hundreds of times; tests that cut the power record each call
sys.modules["rfc3987_syntax"] = None  # JupyterLab's 39 parsers of IRIs; Ray imports them through jsonschema, in 1.6 s
