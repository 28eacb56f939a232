"""The reasons why a run stops, one class per operator reaction; `exit_code` is the exit code of the process."""

import errno
from pathlib import Path
from typing import ClassVar, Final

_DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class TrainerError(Exception):
    """An expected end of the run. The one-line message states what was wrong and what would be right."""

    exit_code: ClassVar[int] = 1


class RunDirectoryError(TrainerError):
    """The run directory belongs to another recipe or process, or is damaged."""

    exit_code = 2


class UnsupportedModel(TrainerError):
    """The trainer cannot compute this model as the engine does, or cannot read it. Choose another."""

    exit_code = 2


class Stalled(TrainerError):
    """Nothing arrived before the deadline. Start the missing service; the same command resumes."""

    exit_code = 3


class ReplicasTaken(Stalled):
    """Another run publishes to the same rollout replicas, which serve a single policy."""


class PublishRefused(TrainerError):
    """The engine's log-probabilities do not agree with the trainer's."""

    exit_code = 4


class CheckpointFailed(TrainerError):
    """The checkpoint could not be written. The last one is intact."""

    exit_code = 5


class TooManyFailures(TrainerError):
    """Episodes of one task kept failing for technical reasons."""

    exit_code = 6


class NothingLeft(TrainerError):
    """A stage has no episodes left to continue with."""

    exit_code = 9


class WorkersFailed(TrainerError):
    """The training workers died more often than the recipe allows, or Ray itself died. The same command resumes."""

    exit_code = 7


class WorkersLost(WorkersFailed):
    """The workers died with their state and are being replaced: continue from the last checkpoint."""


class PluginFailed(TrainerError):
    """A plug-in of the recipe raised in the middle of the run, which resumes only with the same code."""

    exit_code = 8


class Diverged(TrainerError):
    """Several steps in a row did not train: their updates were refused, or the critic is far from any return."""

    exit_code = 10


def is_disk_full(error: BaseException) -> bool:
    """Return whether a write failed for lack of space (a quota or a size limit counts too)."""
    cause = system_error(error)
    if cause is not None:
        return cause.errno in _DISK_FULL
    # safetensors keeps only the error's text.
    text = str(error).lower()
    return any(words in text for words in ("no space left", "file too large", "disk quota exceeded"))


def disk_line(path: Path, error: BaseException) -> str:
    """Return one line that describes a failed write."""
    cause = system_error(error)
    reason = cause.strerror if cause is not None else (str(error) or type(error).__name__).splitlines()[0]
    return f"cannot write to {path}: {reason}"


def system_error(error: BaseException | None) -> OSError | None:
    """Return the operating system's error, which torch hides behind one about its container; None if there is none."""
    while error is not None:
        if isinstance(error, OSError) and error.strerror:
            return error
        error = error.__cause__ or error.__context__
    return None
