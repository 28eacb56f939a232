"""What a number may be written as."""

from typing import Annotated, Any, Final

from pydantic import BeforeValidator


def _number(value: Any) -> Any:
    """Pydantic would read "1" and true as 1, which the published schema does not allow."""
    if isinstance(value, str | bytes | bool):
        raise ValueError("must be a number")
    return value


NUMBER: Final = BeforeValidator(_number)
"""Stands behind the bounds: in front of them it would hide them from the schema."""

Integer = Annotated[int, NUMBER]
"""Also `1.0`, which JSON does not tell from `1`."""
