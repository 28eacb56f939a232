"""A data set of the Hugging Face hub, as a directory."""

from pathlib import Path
from typing import Final

from gymfleet_envs.dataset.options import DatasetOptions
from gymfleet_envs.records import SUFFIXES
from gymfleet_envs.tasks import TaskDataError

_FOLDERS: Final = ("", "data/")


def hub_directory(options: DatasetOptions) -> Path:
    """Return the directory of the files in the hub's cache, fetched only with `hub_download`. Raises `TaskDataError`.

    `HF_HOME` sets the place of the cache; `HF_ENDPOINT` names another hub.
    """
    from huggingface_hub import errors, snapshot_download  # noqa: PLC0415 - only for those who name a hub's data set

    folders = (f"{options.hub_folder}/",) if options.hub_folder else _FOLDERS
    try:
        found = snapshot_download(
            options.hub,
            repo_type="dataset",
            revision=options.hub_revision,
            allow_patterns=[f"{folder}*{suffix}" for folder in folders for suffix in SUFFIXES],
            local_files_only=not options.hub_download,
        )
    except errors.LocalEntryNotFoundError:
        what = "could not be fetched" if options.hub_download else "hub_download is off, so it is not fetched"
        raise TaskDataError(f"{options.hub}@{options.hub_revision} is not in the hub's cache, and {what}") from None
    except (errors.HfHubHTTPError, OSError, ValueError) as error:
        raise TaskDataError(f"{options.hub}@{options.hub_revision}: {str(error).splitlines()[0]}") from None
    return Path(found) / options.hub_folder
