"""Imports in a separate process: the packages of a list that they load."""

from __future__ import annotations

import subprocess
import sys


def loaded_by(code: str, packages: set[str]) -> set[str]:
    """Run code in a fresh interpreter, and return the packages that it has imported."""
    script = f"import sys\n{code}\nprint(*sorted({packages!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())
