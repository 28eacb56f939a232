"""Families of environments: those on one line of `families.txt` share an extra, an image and a service."""

from pathlib import Path
from typing import Final

_LINES: Final = Path(__file__).with_name("families.txt").read_text(encoding="utf-8").splitlines()
_OF: Final = {name: line.split()[0] for line in _LINES if line[:1] != "#" for name in line.split()[1:]}


def family_of(environment: str) -> str:
    """Return the name of an environment's extra, image and service: its family's, or its own."""
    return _OF.get(environment, environment)
