"""The base of every wire model."""

from pydantic import BaseModel, ConfigDict


def is_absent(value: object) -> bool:
    """Return whether an optional field is unset: with `exclude_if`, such a field is left out of what is sent."""
    return value is None or value == ()


class WireModel(BaseModel):
    """Frozen, and refuses fields it does not know: a misspelt field is an error, not a default."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")
