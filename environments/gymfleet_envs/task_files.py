"""Reading a benchmark's files, which somebody else wrote."""

from pathlib import Path

from gymfleet_envs.tasks import TaskDataError


def read_text(env: str, path: Path, *, max_bytes: int, encoding: str = "utf-8") -> str:
    """Return a file's text. Raises `TaskDataError` when it is larger than `max_bytes`, or not in its encoding."""
    if path.stat().st_size > max_bytes:
        raise TaskDataError(f"{env}: {path}: larger than {max_bytes} bytes")
    try:
        return path.read_text(encoding=encoding)
    except UnicodeDecodeError as error:
        raise TaskDataError(f"{env}: {path}: byte {error.start} is not {encoding.upper()}") from None
