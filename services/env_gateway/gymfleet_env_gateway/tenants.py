"""The file of tenants: who shares the fleet, with which keys and within which limits."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Self

from gymfleet_contracts.keys import KEY_ID_PATTERN, Scope
from gymfleet_contracts.session import EnvironmentName
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError, model_validator

_MAX_FILE_BYTES: Final = 4 * 1024 * 1024
_MAX_WEIGHT: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Tenant:
    """A party that shares the fleet with others; its sessions are its own."""

    name: str
    weight: float = 1.0
    """The tenant's share of contended slots, relative to the others' weights."""
    max_sessions: int | None = None
    """Largest number of sessions open at once, over all environments."""
    steps_per_s: float | None = None
    opens_per_s: float | None = None
    environments: frozenset[str] | None = None
    """The environments that it may play; None means all."""

    def may_play(self, env: str) -> bool:
        """Return whether the tenant may play the environment."""
        return self.environments is None or env in self.environments


LOCAL: Final = Tenant("local")
"""The tenant of every caller while the gateway has no keys."""
DEFAULT: Final = Tenant("default")
"""The tenant of the one key of a gateway without a file of tenants."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What one key grants."""

    tenant: Tenant
    scopes: frozenset[Scope]
    sha256: str
    """SHA-256 of the key, in hex."""

    def allows(self, scope: Scope) -> bool:
        """Return whether the key has the scope."""
        return scope in self.scopes or (scope is Scope.READ and Scope.PLAY in self.scopes)


class _Entry(BaseModel):
    # Errors do not repeat the input: somebody may have pasted the key itself.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class _Key(_Entry):
    id: Annotated[str, Field(pattern=KEY_ID_PATTERN)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    scopes: Annotated[frozenset[Scope], Field(min_length=1)] = frozenset({Scope.PLAY})


class _Tenant(_Entry):
    weight: Annotated[PositiveFloat, Field(le=_MAX_WEIGHT)] = 1.0
    max_sessions: PositiveInt | None = None
    steps_per_s: Annotated[PositiveFloat, Field(allow_inf_nan=False)] | None = None
    opens_per_s: Annotated[PositiveFloat, Field(allow_inf_nan=False)] | None = None
    environments: Annotated[frozenset[EnvironmentName], Field(min_length=1)] | None = None
    keys: tuple[_Key, ...] = ()

    def tenant(self, name: str) -> Tenant:
        return Tenant(
            name=name,
            weight=self.weight,
            max_sessions=self.max_sessions,
            steps_per_s=self.steps_per_s,
            opens_per_s=self.opens_per_s,
            environments=self.environments,
        )


class _File(_Entry):
    # With no tenant there is nothing to serve: such a file was cut short while it was written.
    tenants: Annotated[dict[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")], _Tenant], Field(min_length=1)]

    @model_validator(mode="after")
    def ids_are_distinct(self) -> Self:
        """Check that ids are distinct, since a key is found by its id."""
        owners: dict[str, str] = {}
        for name, tenant in self.tenants.items():
            for key in tenant.keys:
                if key.id in owners:
                    raise ValueError(f"the key id {key.id!r} of tenant {name!r} is taken by tenant {owners[key.id]!r}")
                owners[key.id] = name
        return self


def read_tenants(path: Path) -> dict[str, Grant]:
    """Return what each key grants, by the key's id. Raises ValueError, which names the file and the position in it."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
        if len(data) > _MAX_FILE_BYTES:
            raise ValueError(f"it is larger than {_MAX_FILE_BYTES} bytes")
        content = _File.model_validate(tomllib.loads(data.decode()))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from None
    except ValidationError as error:
        places = "; ".join(
            f"{'.'.join(map(str, item['loc'])) or 'tenants'}: {item['msg'].removeprefix('Value error, ')}"
            for item in error.errors(include_input=False, include_url=False)
        )
        raise ValueError(f"{path}: {places}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from None
    return {
        key.id: Grant(tenant=entry.tenant(name), scopes=key.scopes, sha256=key.sha256)
        for name, entry in content.tenants.items()
        for key in entry.keys
    }
