"""Passages: in memory for thousands, in two files for millions, which all processes of a machine share."""

from array import array
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

_TEXTS: Final = "texts.bin"
_PLACES: Final = "places.npy"


class Passage(NamedTuple):
    """A piece of text under a title of one line."""

    title: str
    text: str

    @property
    def whole(self) -> str:
        """The text that is indexed and embedded."""
        return f"{self.title}\n{self.text}"


class Passages(Protocol):
    """Passages by their number."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> Passage: ...


class DiskPassages:
    """Passages in files that `PassageWriter` wrote. Raises OSError and ValueError for damaged ones."""

    def __init__(self, directory: Path) -> None:
        self._places = np.load(directory / _PLACES, mmap_mode="r")
        size = (directory / _TEXTS).stat().st_size
        self._texts: npt.NDArray[np.uint8] = (
            np.memmap(directory / _TEXTS, np.uint8, "r") if size else np.empty(0, np.uint8)
        )
        if self._places.dtype != np.int64 or self._places.ndim != 1 or not len(self._places):
            raise ValueError(f"{_PLACES} holds no places of passages")
        if int(self._places[-1]) != size:
            raise ValueError(f"{_TEXTS} has {size} bytes instead of {int(self._places[-1])}")

    def __len__(self) -> int:
        return len(self._places) - 1

    def __getitem__(self, number: int) -> Passage:
        whole = self._texts[self._places[number] : self._places[number + 1]].tobytes().decode(errors="replace")
        title, _, text = whole.partition("\n")
        return Passage(title, text)


class PassageWriter:
    """Writes passages into a directory, one after the other; used as a context manager."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file = (directory / _TEXTS).open("wb")
        self._places = array("q", [0])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if kind is None:
            np.save(self._directory / _PLACES, np.array(self._places, np.int64))

    def add(self, passage: Passage) -> None:
        """Write the next passage."""
        self._places.append(self._places[-1] + self._file.write(passage.whole.encode(errors="replace")))


def shown(passages: Sequence[Passage], most_chars: int) -> str:
    """Return passages in the wording of AgentGym's server."""
    texts = (text if len(text) <= most_chars else f"{text[:most_chars]}..." for _, text in passages)
    return "".join(
        f'Doc {number}(Title: "{passage.title}") {text}\n'
        for number, (passage, text) in enumerate(zip(passages, texts, strict=True), 1)
    )
