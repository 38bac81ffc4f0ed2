"""The one command line of all benchmarks."""

from __future__ import annotations

import argparse


def options_of(parser: argparse.ArgumentParser, **quick: object) -> argparse.Namespace:
    """Read the options; with `--quick` they are the smallest, which show that a benchmark runs and measure nothing."""
    unknown = quick.keys() - {action.dest for action in parser._actions}
    assert not unknown, f"no options of this benchmark: {sorted(unknown)}"
    parser.add_argument("--quick", action="store_true", help="the smallest size: it shows that this runs")
    options = parser.parse_args()
    if options.quick:
        vars(options).update(quick)
    del options.quick
    return options
