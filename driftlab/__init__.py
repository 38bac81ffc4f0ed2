"""driftlab: simulate vision models on edge devices under distribution shift and varying load."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from driftlab import errors

if TYPE_CHECKING:
    from driftlab.one_process import run
    from driftlab.platform.results.relations.comparison import open_run
    from driftlab.platform.results.tables.read import newest_run

__version__ = "0.1.0"
__all__ = ["__version__", "errors", "newest_run", "open_run", "run"]


def __getattr__(name: str) -> Any:
    """Import the object of a public name at its first use, so that `import driftlab` is fast."""
    if name == "newest_run":
        from driftlab.platform.results.tables.read import newest_run

        return newest_run
    if name == "open_run":
        from driftlab.platform.results.relations.comparison import open_run

        return open_run
    if name == "run":
        from driftlab.one_process import run

        if "ipykernel" not in sys.modules:
            return run
        from driftlab.cli.progress import NotebookBar

        return functools.partial(run, progress=NotebookBar())
    raise AttributeError(f"module 'driftlab' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
