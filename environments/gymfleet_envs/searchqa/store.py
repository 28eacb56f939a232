"""A corpus on disk: passages, index, vectors and questions, written by an import and shared by all processes."""

import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from gymfleet_envs.environment import EngineLost
from gymfleet_envs.lucene.index import ARRAYS, Index, IndexBuilder
from gymfleet_envs.lucene.vocabulary import SCHEMA, DiskVocabulary, write_vocabulary
from gymfleet_envs.searchqa.corpus import Corpus, Dense, Embed, Hybrid
from gymfleet_envs.searchqa.embeddings import Embeddings, EmbeddingsFailed
from gymfleet_envs.searchqa.gathering import Question, gather
from gymfleet_envs.searchqa.options import SearchQAOptions
from gymfleet_envs.searchqa.passages import DiskPassages, Passage, PassageWriter
from gymfleet_envs.tasks import TaskDataError

MANIFEST: Final = "searchqa.json"
_QUESTIONS: Final = "questions.msgpack"
_TERMS: Final = "terms.sqlite"
_VECTORS: Final = "vectors.npy"
_FORMAT: Final = 2
"""Differs whenever the terms of the same text do: a query would miss those of an older index."""
_BATCH: Final = 64
"""Number of passages that one request embeds."""


class Manifest(msgspec.Struct, frozen=True):
    """The contents of an imported directory."""

    format: int
    passages: int
    questions: int
    left_out: tuple[str, ...]
    embeddings_model: str = ""
    """The model of the passages' vectors; empty if they have none."""
    passage_prefix: str = ""


def write_store(data: Path, target: Path, options: SearchQAOptions) -> None:
    """Put the questions and passages of published files into an empty directory. Raises `TaskDataError`."""
    if (data / MANIFEST).is_file():  # imported before: as it is
        open_store(data, options)
        shutil.copytree(data, target, dirs_exist_ok=True)
        return
    builder = IndexBuilder(target)
    with PassageWriter(target) as writer:

        def add(passage: Passage) -> None:
            writer.add(passage)
            builder.add(passage.whole)

        questions, left_out = gather(data, add)
    builder.finish()
    with closing(sqlite3.connect(target / _TERMS)) as database:
        database.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;" + SCHEMA)
        write_vocabulary(database, builder.vocabulary)
        database.commit()
    (target / _QUESTIONS).write_bytes(msgspec.msgpack.encode(questions))
    passages = DiskPassages(target)
    model, prefix = "", ""
    if options.search != "bm25":
        model, prefix = options.embeddings_model, options.passage_prefix
        _write_vectors(target, passages, options)
    # Last of all: without it the directory is no store.
    manifest = Manifest(_FORMAT, len(passages), len(questions), tuple(left_out), model, prefix)
    (target / MANIFEST).write_bytes(msgspec.json.encode(manifest))


def open_store(directory: Path, options: SearchQAOptions) -> tuple[Corpus, list[Question], Manifest]:
    """Open a store that `write_store` wrote. Raises `TaskDataError`."""
    try:
        manifest = msgspec.json.decode((directory / MANIFEST).read_bytes(), type=Manifest)
        if manifest.format != _FORMAT:
            raise TaskDataError(f"searchqa: {directory / MANIFEST} is of another format: import the files again")
        questions = msgspec.msgpack.decode((directory / _QUESTIONS).read_bytes(), type=list[Question])
        passages = DiskPassages(directory)
        uri = f"{(directory / _TERMS).resolve().as_uri()}?mode=ro&immutable=1"
        database = sqlite3.connect(uri, uri=True, check_same_thread=False)
        database.execute("SELECT number FROM terms LIMIT 1")
        offsets, documents, impacts = (np.load(directory / f"{name}.npy", mmap_mode="r") for name in ARRAYS)
        vectors = np.load(directory / _VECTORS, mmap_mode="r") if manifest.embeddings_model else None
    except (OSError, ValueError, EOFError, sqlite3.Error, msgspec.MsgspecError) as error:
        raise TaskDataError(f"searchqa: the import in {directory} is damaged: {str(error)[:200]}") from None
    fits = len(passages) == manifest.passages and len(questions) == manifest.questions
    fits = fits and len(documents) == len(impacts) and len(offsets) > 0 and int(offsets[-1]) == len(documents)
    if not fits or (vectors is not None and (vectors.ndim != 2 or len(vectors) != len(passages))):
        raise TaskDataError(f"searchqa: the import in {directory} is damaged: its parts do not fit each other")
    index = Index(DiskVocabulary(database), offsets, documents, impacts, len(passages))
    if options.search == "bm25":
        return Corpus(passages, index), questions, manifest
    if vectors is None or (manifest.embeddings_model, manifest.passage_prefix) != (
        options.embeddings_model,
        options.passage_prefix,
    ):
        had = f"those of {manifest.embeddings_model!r}" if vectors is not None else "none"
        raise TaskDataError(
            f"searchqa: search={options.search} needs vectors of {options.embeddings_model!r} with passage_prefix "
            f"{options.passage_prefix!r}, and {directory} has {had}: import the files again with these options"
        )
    dense = Dense(vectors, query_vectors(options, int(vectors.shape[1])))
    return Corpus(passages, dense if options.search == "dense" else Hybrid(index, dense)), questions, manifest


def query_vectors(options: SearchQAOptions, dimensions: int) -> Embed:
    """Return the function that makes the vectors of queries.

    It raises `EngineLost`: a query without an answer is not a query that finds nothing.
    """
    embeddings = Embeddings(options)

    def embed(texts: Sequence[str]) -> npt.NDArray[np.float32]:
        try:
            vectors = embeddings([f"{options.query_prefix}{text}" for text in texts])
        except EmbeddingsFailed as error:
            raise EngineLost(f"searchqa: no vector of a query: {error}") from None
        if vectors.shape[1] != dimensions:
            raise EngineLost(f"searchqa: vectors of queries have {vectors.shape[1]} numbers, passages' {dimensions}")
        return vectors

    return embed


def _write_vectors(target: Path, passages: DiskPassages, options: SearchQAOptions) -> None:
    embeddings = Embeddings(options)
    output: Any = None
    mapped: Any = np.lib.format.open_memmap
    for begin in range(0, len(passages), _BATCH):
        numbers = range(begin, min(begin + _BATCH, len(passages)))
        try:
            vectors = embeddings([f"{options.passage_prefix}{passages[number].whole}" for number in numbers])
        except EmbeddingsFailed as error:
            raise TaskDataError(f"searchqa: no vectors of the passages from {begin} on: {error}") from None
        if output is None:
            shape = (len(passages), vectors.shape[1])
            output = mapped(target / _VECTORS, "w+", np.float32, shape)
        if vectors.shape[1] != output.shape[1]:
            raise TaskDataError(f"searchqa: {options.embeddings_model} gives vectors of different lengths")
        output[begin : begin + len(numbers)] = vectors
    if output is not None:
        output.flush()
