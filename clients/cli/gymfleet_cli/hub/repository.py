"""One repository of the hub: pushing files to it, and fetching only allowed files from it.

The hub is the one at `HF_ENDPOINT`. The token is that in `HF_TOKEN`, or in the file that `hf auth login` writes; it is
sent to the hub and shown nowhere. Anybody may have written the files there, so only files of the requested kinds are
fetched, under names that stay in the directory, and no more bytes than allowed.
"""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal, TypeVar

from gymfleet_cli.console import CliError, UsageProblem

T = TypeVar("T")
RepoType = Literal["dataset", "model"]
MAX_FILES: Final = 10_000
_MAX_TOLD: Final = 300
_FOR_PEOPLE: Final = {"dataset": "data", "model": "model"}


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository, as the hub lists it."""

    path: str
    size_bytes: int


class Repository:
    """A repository, by its id `OWNER/NAME`."""

    def __init__(self, repo_id: str, repo_type: RepoType) -> None:
        """Raises `UsageProblem` for an invalid name, `CliError` if the package is missing."""
        try:
            import huggingface_hub  # noqa: PLC0415 - not everybody has it, and it takes long to import
            from huggingface_hub.utils._validators import validate_repo_id  # noqa: PLC0415
            from huggingface_hub.utils.tqdm import disable_progress_bars  # noqa: PLC0415
        except ModuleNotFoundError:
            raise CliError("this needs huggingface_hub: install gymfleet[hub]") from None
        if repo_id.count("/") != 1:
            raise UsageProblem(f"{repo_id}: give OWNER/NAME")
        try:
            validate_repo_id(repo_id)
        except ValueError as error:
            raise UsageProblem(_one_line(error)) from None
        disable_progress_bars()
        endpoint = os.environ.get("HF_ENDPOINT") or None
        self._hub = huggingface_hub
        self._api = huggingface_hub.HfApi(endpoint=endpoint, library_name="gymfleet")
        self._id = repo_id
        self._type = repo_type

    @property
    def url(self) -> str:
        """Return its address."""
        place = "datasets/" if self._type == "dataset" else ""
        return f"{self._api.endpoint}/{place}{self._id}"

    def push(self, files: Mapping[str, Path | bytes], *, private: bool, message: str) -> str:
        """Make the repository if it does not exist, put files into it in one commit, and return the commit's id.

        Raises `CliError`, also if `private` is set and the repository exists but is public.
        """
        operations = [
            self._hub.CommitOperationAdd(path, content if isinstance(content, bytes) else str(content))
            for path, content in files.items()
        ]

        def push() -> str:
            self._api.create_repo(self._id, repo_type=self._type, private=private, exist_ok=True)
            if private and not self._api.repo_info(self._id, repo_type=self._type).private:
                raise CliError(f"{self.url} is there already and is public: add --public if everybody may see this")
            done = self._api.create_commit(self._id, operations, commit_message=message, repo_type=self._type)
            return str(done.oid)

        return self._called(push)

    def files(self, revision: str | None) -> tuple[str, list[RemoteFile]]:
        """Return the commit of a revision, and its files. Raises `CliError` for names that lead out of a directory."""

        def files() -> tuple[str, list[RemoteFile]]:
            info: Any = self._api.repo_info(self._id, repo_type=self._type, revision=revision, files_metadata=True)
            listed = info.siblings or []
            return str(info.sha), [RemoteFile(one.rfilename, one.size or 0) for one in listed[: MAX_FILES + 1]]

        commit, found = self._called(files)
        if len(found) > MAX_FILES:
            raise CliError(f"{self.url} has more than {MAX_FILES} files")
        for one in found:
            require_inside(one.path)
        return commit, found

    def paths(self) -> list[str]:
        """Return the names of its files; none if the repository does not exist yet. Raises `CliError`."""

        def paths() -> list[str]:
            try:
                info: Any = self._api.repo_info(self._id, repo_type=self._type)
            except self._hub.errors.RepositoryNotFoundError:
                return []
            return [one.rfilename for one in info.siblings or []]

        return self._called(paths)

    def fetch(
        self,
        wanted: Sequence[RemoteFile],
        commit: str,
        directory: Path,
        *,
        max_bytes: int,
        check: Callable[[Path], None],
    ) -> None:
        """Put files of a commit into a new directory, unless `check` raises an error for them.

        Raises `CliError`; then the directory is not made.
        """
        if (total := sum(one.size_bytes for one in wanted)) > max_bytes:
            raise CliError(f"{self.url}: {len(wanted)} files have {total:,} bytes; --max-bytes allows {max_bytes:,}")
        partial = directory.with_name(f"{directory.name}.partial")
        try:
            for one in wanted:
                self._fetch(one, commit, partial)
            shutil.rmtree(partial / ".cache", ignore_errors=True)  # the library's own notes
            check(partial)
            partial.rename(directory)
        except OSError as error:
            raise CliError(f"{directory} cannot be written: {error.strerror or error}") from None
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _fetch(self, one: RemoteFile, commit: str, directory: Path) -> None:
        path = self._called(
            lambda: self._api.hf_hub_download(
                self._id, one.path, repo_type=self._type, revision=commit, local_dir=directory
            )
        )
        if (size := Path(path).stat().st_size) != one.size_bytes:
            raise CliError(f"{self.url}: {one.path} has {size:,} bytes, and was said to have {one.size_bytes:,}")

    def _called(self, call: Callable[[], T]) -> T:
        """Return the hub's answer. Raises `CliError`, which contains no token."""
        try:
            return call()
        except (self._hub.errors.HfHubHTTPError, self._hub.errors.LocalEntryNotFoundError, ValueError) as error:
            raise CliError(f"{_FOR_PEOPLE[self._type]} at {self.url}: {_one_line(error)}") from None
        except (OSError, RuntimeError) as error:  # of a connection, and of one that broke in an upload
            raise CliError(f"{_FOR_PEOPLE[self._type]} at {self.url}: {_one_line(error)}") from None
        except Exception as error:
            if type(error).__module__.partition(".")[0] not in {"httpx", "httpx2", "httpcore", "httpcore2"}:
                raise
            raise CliError(f"{self.url} does not answer: {type(error).__name__}") from None


def require_inside(path: str) -> None:
    """Raise `CliError` for a file name that could lead out of the target directory."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or "\\" in path or ":" in path or ".." in parts or not path.isprintable():
        raise CliError(f"the hub lists a file under the name {path[:100]!r}, which could lead out of its directory")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:_MAX_TOLD] or type(error).__name__
