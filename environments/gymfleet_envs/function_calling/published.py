"""The world of BFCL's dialogues: instances of its classes, one set for each session."""

import copy
import decimal
import inspect
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Self

from gymfleet_envs.function_calling.calls import Call, Value
from gymfleet_envs.function_calling.classes import load_class
from gymfleet_envs.function_calling.task import Dialogue
from gymfleet_envs.function_calling.world import ERROR, World, refusal, undefined

_STATELESS: Final = ("MathAPI",)
_MAX_DIGITS: Final = 1000
"""Limit of a precision or a number of decimal places."""
_MAX_BITS: Final = 100_000
"""Limit of a power of integers."""
_MAX_RESULT: Final = 1_000_000
_MAX_PLACES: Final = 5_000
_MAX_CHARS: Final = 2_000_000
_MAX_LEVELS: Final = 60


class PublishedWorld(World):
    """Instances of the classes that a dialogue involves."""

    def __init__(self, instances: Mapping[str, Any]) -> None:
        self._instances = instances

    @classmethod
    def of(cls, task: Dialogue, directory: Path) -> Self:
        """Make the instances as BFCL does. Raises `UnknownSource`, and the class's errors for a damaged scenario."""
        config, instances = json.loads(task.config), {}
        for name in task.classes:
            instances[name] = load_class(name, directory)()
            if name not in _STATELESS:
                instances[name]._load_scenario(config.get(name, {}), long_context=task.long_context)  # noqa: SLF001
        return cls(instances)

    def call(self, call: Call) -> str:
        """Call a public method, of the last class that has it, with the arguments unchanged."""
        if (refused := refusal(call) or _excess(call)) is not None:
            return refused
        method = self._method(call.name)
        if method is None:
            return undefined(call)
        try:
            with decimal.localcontext():  # BFCL's own classes set its precision for the whole thread
                text = _as_text(method(*call.unnamed, **call.arguments))
        except Exception as error:  # noqa: BLE001 - whatever it is, BFCL shows it to the model
            return f"{ERROR}{str(error)[:_MAX_RESULT]}"
        return text if len(text) <= _MAX_RESULT else f"{ERROR}the result is longer than {_MAX_RESULT} characters"

    def _method(self, name: str) -> Callable[..., Any] | None:
        if name.startswith("_"):
            return None
        methods = (getattr(instance, name, None) for instance in reversed(list(self._instances.values())))
        return next((method for method in methods if inspect.ismethod(method)), None)

    def is_like(self, other: Self) -> bool:
        """Compare the public attributes of each instance, as BFCL does."""
        try:
            return all(
                _public(instance) == _public(other._instances[name]) for name, instance in self._instances.items()
            )
        except RecursionError:
            return False

    def key(self) -> str:
        """Return the content of the instances, including private parts, because the next calls depend on those too."""
        return repr([(name, _plain(vars(instance), 0)) for name, instance in self._instances.items()])

    def copy(self) -> Self:
        """Copy every instance whole."""
        return type(self)(copy.deepcopy(self._instances))

    @property
    def is_too_large(self) -> bool:
        """Whether the files are too large: copies share their contents, so a few calls could make an endless tree."""
        files = self._instances.get("GorillaFileSystem")
        return files is not None and _is_too_large(files.root)


def _public(instance: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(instance).items() if not name.startswith("_")}


def _as_text(result: Any) -> str:
    if isinstance(result, str):
        return result
    if isinstance(result, dict):
        try:
            return json.dumps(result)
        except (TypeError, ValueError):
            return str(result)
    return str(result)


def _excess(call: Call) -> str | None:
    """Return the answer to arguments with which some of BFCL's methods would compute for hours."""
    for name in ("precision", "decimal_places"):
        if _whole(call.arguments.get(name, 0)) > _MAX_DIGITS:
            return f"{ERROR}{name} must be at most {_MAX_DIGITS}"
    base, exponent = call.arguments.get("base"), call.arguments.get("exponent")
    if isinstance(base, int) and isinstance(exponent, int) and _bits(base, exponent) > _MAX_BITS:
        return f"{ERROR}the result is too large"
    return None


def _whole(value: Value) -> int:
    """Return the size of a number as mpmath reads it, which takes texts and fractions for whole numbers."""
    try:
        return abs(int(value))
    except (TypeError, ValueError, OverflowError):
        return 0


def _bits(base: int, exponent: int) -> float:
    return (
        math.log2(abs(base)) * exponent if abs(base) > 1 and exponent < _MAX_BITS else float(abs(base) > 1) * exponent
    )


def _is_too_large(root: Any) -> bool:
    """Return whether a tree has too many places, counted once per path to them, or too long paths and contents."""
    places, chars, pending = 0, 0, [(root, 0, 0)]
    while pending:
        item, path, level = pending.pop()
        path += len(item.name)
        places, chars = places + 1, chars + path + len(getattr(item, "content", ""))
        if places > _MAX_PLACES or chars > _MAX_CHARS or level > _MAX_LEVELS:
            return True
        pending += [(child, path, level + 1) for child in getattr(item, "contents", {}).values()]
    return False


def _plain(value: Value, level: int) -> Any:
    """Return a state as texts and containers in a fixed order, without times of day and back references."""
    if level > 2 * _MAX_LEVELS:
        return "..."
    if isinstance(value, Mapping):
        return [(repr(key), _plain(one, level + 1)) for key, one in value.items()
                if key not in ("_last_modified", "parent")]  # fmt: skip
    if isinstance(value, list | tuple):
        return [_plain(one, level + 1) for one in value]
    if hasattr(value, "getstate"):
        return hash(value.getstate())
    return _plain(vars(value), level + 1) if hasattr(value, "__dict__") else repr(value)
