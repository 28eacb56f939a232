"""What a number may be written as."""

from typing import Any, Final

from pydantic import BeforeValidator


def _number(value: Any) -> Any:
    """Pydantic would read "1" and true as 1, which the published schema does not allow."""
    if isinstance(value, str | bytes | bool):
        raise ValueError("must be a number")
    return value


NUMBER: Final = BeforeValidator(_number)
"""Stands behind the bounds: in front of them it would hide them from the schema."""
