"""Run the command line as `python -m driftlab`."""

from __future__ import annotations

from driftlab.cli.app import main

if __name__ == "__main__":
    main()
