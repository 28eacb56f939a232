"""Settings of a service: environment variables, read once, frozen, no unknown names."""

import os
import sys
from typing import Self, TypeVar

from pydantic import ValidationError, model_validator
from pydantic_settings import BaseSettings

S = TypeVar("S", bound="ServiceSettings")


class ServiceSettings(BaseSettings):
    """Base of every service's settings. Subclasses set `env_prefix` in `model_config`."""

    @model_validator(mode="after")
    def no_unknown_variables(self) -> Self:
        """A misspelt variable is an error: pydantic-settings alone would ignore it."""
        prefix = self.model_config.get("env_prefix", "").upper()
        known = {f"{prefix}{name}".upper() for name in type(self).model_fields}
        given = {name.split("__")[0].upper() for name in os.environ if name.upper().startswith(prefix)}
        if prefix and (unknown := sorted(given - known)):
            raise ValueError(f"unknown settings {', '.join(unknown)}; known: {', '.join(sorted(known))}")
        return self


def read_settings(settings: type[S]) -> S:
    """Read settings from the environment; on a mistake print one line that names it and exit with 2."""
    try:
        return settings()
    except ValidationError as error:
        prefix = settings.model_config.get("env_prefix", "")
        problems = "; ".join(
            f"{(prefix + '__'.join(str(part) for part in item['loc'])).upper()}: {item['msg']}"
            if item["loc"]
            else item["msg"].removeprefix("Value error, ")
            for item in error.errors(include_input=False)
        )
        sys.stderr.write(f"error: {problems}\n")
        raise SystemExit(2) from None
