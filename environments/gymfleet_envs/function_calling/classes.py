"""BFCL's own classes, whose methods are the functions of its dialogues, loaded from the user's copy if it is known.

They are code that runs in this process. So a file is loaded only if its digest is that of the published package, whose
behaviour is known: none of its files evaluates, opens or starts anything.
"""

import functools
import hashlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

RELEASE: Final = "bfcl-eval 2026.3.23"
SOURCES: Final[Mapping[str, str]] = {
    "gorilla_file_system": "84173750930b09aaa31b90547c9bd79ce75714682608b35e78a9c1ea259faf2b",
    "long_context": "5c9a5710115609c779e5b2ccb43f6ad58271ed96f2ea7a797edb0d65c385aa38",
    "math_api": "abde32cc25e71b2ff3acf4d028a3c005b98409c174aba4abddbfe1c018afb9a8",
    "message_api": "cf72af1635654147af17df1891a7fb354549e78a61930139f741a31f4be21121",
    "posting_api": "32b887aaa37c7167ad9c84ddfa7bbb855c75d3c1edab19ba868aba29acc4cfa1",
    "ticket_api": "6a9375aa6425410c07a151aef27f3e44e9ed1023bb5cc5c25f14f4a9b3c99116",
    "trading_bot": "cc2e3949035b561e9d07418b081561aa07b211672200e2e511aec074bf79fcb2",
    "travel_booking": "e698e22adccf0d6d41b297f2d5e44faebd828cef4752df6a4ffb1570c0c35296",
    "vehicle_control": "f5f7a2f28968728927a98ae12ec68a32d70781cfb74c2d7b14801772362b12d1",
}
"""SHA-256 of each module's file in the published package."""
CLASSES: Final[Mapping[str, str]] = {
    "GorillaFileSystem": "gorilla_file_system", "MathAPI": "math_api", "MessageAPI": "message_api",
    "TicketAPI": "ticket_api", "TradingBot": "trading_bot", "TravelAPI": "travel_booking",
    "TwitterAPI": "posting_api", "VehicleControlAPI": "vehicle_control",
}  # fmt: skip
"""The module of each class; it is also the name of the file that describes its functions."""
_PACKAGE: Final = "bfcl_eval.eval_checker.multi_turn_eval.func_source_code"
_OURS: Final = "gymfleet_bfcl_classes"


class UnknownSource(Exception):
    """A class cannot be loaded. The message names the file and the reason."""


class _Loader(importlib.machinery.SourceFileLoader):
    """Runs a file with the known digest, and lets it import its neighbour under our name."""

    def get_data(self, path: str) -> bytes:
        """Return the bytes to run. No compiled file is read or written."""
        if not path.endswith(".py"):
            raise OSError(path)
        return _source(Path(path)).replace(_PACKAGE.encode(), _OURS.encode())

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        """Write nothing next to the user's files."""


def _source(path: Path) -> bytes:
    if not path.is_file():
        raise UnknownSource(f"{path.name} is missing")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != SOURCES[path.stem]:
        raise UnknownSource(f"{path.name} is not that of {RELEASE}, and no other is run")
    return content


@functools.cache
def load_class(name: str, directory: Path) -> type[Any]:
    """Return one of BFCL's classes from the directory with its modules. Raises `UnknownSource`."""
    if name not in CLASSES:
        raise UnknownSource(f"class {name} is not played; {', '.join(CLASSES)} are")
    if _OURS not in sys.modules:
        sys.modules[_OURS] = ModuleType(_OURS)
    _load("long_context", directory)
    found: type[Any] = getattr(_load(CLASSES[name], directory), name)
    return found


def _load(module: str, directory: Path) -> ModuleType:
    name, path = f"{_OURS}.{module}", directory / f"{module}.py"
    _source(path)
    if name in sys.modules:  # the same bytes, from wherever they were read
        return sys.modules[name]
    spec = importlib.util.spec_from_loader(name, _Loader(name, str(path)))
    if spec is None or spec.loader is None:
        raise UnknownSource(f"{path.name} cannot be loaded")
    loaded = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(loaded)
    except ImportError as error:
        raise UnknownSource(f"{path.name} needs {error.name}: pip install 'gymfleet[env-function_calling]'") from None
    sys.modules[name] = loaded
    return loaded
