"""The command line that all benchmarks share: the full size or a smoke size, and where the figures go."""

import argparse
import signal
import sys
from collections.abc import Mapping
from typing import Any


class BenchmarkCommand(argparse.ArgumentParser):
    """A parser whose `--smoke` replaces the defaults of the benchmark's own options.

    Args:
        doc: the benchmark's docstring.
        smoke: the smallest sizes with which every line of the benchmark still runs, by the options' names.
    """

    def __init__(self, doc: str | None, smoke: Mapping[str, Any]) -> None:
        super().__init__(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
        self._smoke = smoke
        way = self.add_mutually_exclusive_group()
        way.add_argument(
            "--smoke", action="store_true", help="as small as it can be, to see that it runs: keeps nothing"
        )
        way.add_argument(
            "--publish",
            action="store_true",
            help="replace the published figures, benchmarks/results and docs; without it they go to runs/benchmarks",
        )

    def options(self) -> argparse.Namespace:
        """Return what was given; an option that is given by hand wins over `--smoke`."""
        # Ends as Ctrl-C does, so that the processes which a benchmark has started end with it.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        options = self.parse_args()
        if options.smoke:
            self.set_defaults(**self._smoke)
            options = self.parse_args()
        return options
