"""Settings of a service: environment variables and secret files, read once, frozen, no unknown names."""

import argparse
import os
import sys
from pathlib import Path
from typing import Annotated, Final, Self, TypeVar

from pydantic import AnyUrl, Field, UrlConstraints, ValidationError, model_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsError

S = TypeVar("S", bound="ServiceSettings")

RedisUrl = Annotated[AnyUrl, UrlConstraints(allowed_schemes=["redis", "rediss", "unix"])]
"""`redis://host:port/db`, `rediss://` with TLS, or `unix:///path/of/the/socket`."""
LOCAL_REDIS: Final = AnyUrl("redis://127.0.0.1:6379/0")
LogLevel = Annotated[str, Field(pattern=r"(?i)^(debug|info|warning|error)$")]
SECRETS_DIR: Final = Path("/run/secrets")
"""The directory in which containers get secrets as files; `GYMFLEET_SECRETS_DIR` names another one."""
MAX_SECRET_BYTES: Final = 64 * 1024


class ServiceSettings(BaseSettings):
    """Base of every service's settings. Subclasses set `env_prefix` in `model_config`.

    A value comes from an environment variable, or else from a file in the secrets directory with the
    variable's name in lower case: it is read, nested and parsed as the variable would be.
    """

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the signature is pydantic-settings'
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - reads no nested values, follows no variable
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources; an earlier one takes precedence."""
        return init_settings, env_settings, SecretFiles(settings_cls)

    @model_validator(mode="after")
    def no_unknown_names(self) -> Self:
        """Refuse a misspelt variable or file, and `NAME__PART` of a setting without parts, which would be ignored."""
        prefix = self.model_config.get("env_prefix", "").upper()
        known = {f"{prefix}{name}".upper() for name in type(self).model_fields}
        divided = {f"{prefix}{name}".upper() for name in self._divided()}
        given = [name.upper() for name in os.environ if name.upper().startswith(prefix)]
        given += [str(file) for file in _secret_files(prefix)]
        unknown = sorted(
            name
            for name, (setting, mark, _) in ((name, Path(name).name.upper().partition("__")) for name in given)
            if setting not in (divided if mark else known)
        )
        if prefix and unknown:
            raise ValueError(f"unknown settings {', '.join(unknown)}; known: {', '.join(sorted(known))}")
        return self

    @classmethod
    def _divided(cls) -> list[str]:
        """Return the settings whose parts may have variables of their own."""
        source = EnvSettingsSource(cls)
        fields = cls.model_fields.items() if source.env_nested_delimiter else ()
        return [name for name, field in fields if source.field_is_complex(field)]


class SecretFiles(EnvSettingsSource):
    """The secrets directory, read as if its files were variables."""

    def __init__(self, settings_cls: type[BaseSettings]) -> None:
        super().__init__(settings_cls)
        self.env_vars = {file.name.lower(): _read_secret(file) for file in _secret_files(self.env_prefix)}


def _secret_files(prefix: str) -> list[Path]:
    """Return the files whose names start with the service's prefix; the directory may hold other services' secrets."""
    directory = Path(os.environ.get("GYMFLEET_SECRETS_DIR") or SECRETS_DIR)
    if not prefix:
        return []
    try:
        return sorted(file for file in directory.iterdir() if file.name.lower().startswith(prefix.lower()))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise SettingsError(f"the secrets in {directory} cannot be listed: {error.strerror}") from None


def _read_secret(file: Path) -> str:
    try:
        if not file.is_file():  # opening a pipe would wait for its writer
            raise SettingsError(f"the secret {file} is not a file")
        with file.open("rb") as stream:
            content = stream.read(MAX_SECRET_BYTES + 1)
        if len(content) > MAX_SECRET_BYTES:
            raise SettingsError(f"the secret {file} is longer than {MAX_SECRET_BYTES} bytes")
        return content.decode().rstrip("\r\n")
    except OSError as error:
        raise SettingsError(f"the secret {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"the secret {file} is not UTF-8 text") from None


def no_arguments(program: str, what: str, settings: type[ServiceSettings]) -> None:
    """Parse the command line of a service without arguments: `--help` names its settings, all else exits with 2."""
    prefix = settings.model_config.get("env_prefix", "")
    names = [
        f"  {prefix}{name.upper()}{' (required)' if field.is_required() else ''}"
        for name, field in settings.model_fields.items()
    ]
    argparse.ArgumentParser(
        prog=program,
        description=what,
        epilog="\n".join(["settings, as environment variables or secret files:", *names]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args()


def read_settings(settings: type[S]) -> S:
    """Read settings from environment and secret files; on a mistake, print one line that names it and exit with 2."""
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
    except SettingsError as error:
        problems = str(error)
    sys.stderr.write(f"error: {problems}\n")
    raise SystemExit(2)
