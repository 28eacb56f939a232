"""The base of every wire model."""

from pydantic import BaseModel, ConfigDict


def is_absent(value: object) -> bool:
    """Return whether an optional field is unset. With `exclude_if`, an unset field is left out of what is sent."""
    return value is None or value == ()


class WireModel(BaseModel):
    """A frozen model that refuses unknown fields: a misspelt field is an error, not a default."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")
