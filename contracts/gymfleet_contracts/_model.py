"""The base of every wire model."""

from pydantic import BaseModel, ConfigDict


class WireModel(BaseModel):
    """Frozen, and refuses fields it does not know: a misspelt field is an error, not a default."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")
