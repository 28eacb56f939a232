"""The command line shared by all benchmarks: the full size or a smoke size, and the place for the figures."""

import argparse
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Size:
    """An option for the amount to measure: its default, and the smallest value with which every line still runs.

    A tuple stands for an option of several numbers.
    """

    full: float | tuple[float, ...]
    smoke: float | tuple[float, ...]
    help: str | None = None


class BenchmarkCommand(argparse.ArgumentParser):
    """A parser whose `--smoke` replaces the defaults of the benchmark's own options.

    Args:
        doc: the benchmark's docstring.
        sizes: options by their names, as in `pause_s` for `--pause-s`.
        smoke: values under `--smoke` of options that are added by hand, by the same names.
    """

    def __init__(
        self, doc: str | None, sizes: Mapping[str, Size] = _NOTHING, *, smoke: Mapping[str, Any] = _NOTHING
    ) -> None:
        super().__init__(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
        self._smoke = {**smoke, **{name: size.smoke for name, size in sizes.items()}}
        way = self.add_mutually_exclusive_group()
        way.add_argument(
            "--smoke", action="store_true", help="as small as it can be, to see that it runs: keeps nothing"
        )
        way.add_argument(
            "--publish",
            action="store_true",
            help="replace the published figures, benchmarks/results and docs; without it they go to runs/benchmarks",
        )

        for name, size in sizes.items():
            several = isinstance(size.full, tuple)
            self.add_argument(
                f"--{name.replace('_', '-')}",
                type=type(size.full[0] if isinstance(size.full, tuple) else size.full),
                nargs="+" if several else None,
                default=size.full,
                help=size.help,
            )

    def options(self) -> argparse.Namespace:
        """Return the options; one given explicitly takes precedence over `--smoke`."""
        # End as on Ctrl-C, so that the processes started by a benchmark end with it.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        options = self.parse_args()
        if options.smoke:
            self.set_defaults(**self._smoke)
            options = self.parse_args()
        return options
