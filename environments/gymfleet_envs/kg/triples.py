"""Files of triples, such as FB15k's or WN18RR's: read, given made-up numbers, and loaded into a store."""

import gzip
import hashlib
import json
import random
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final, Literal

from gymfleet_contracts.session import Split
from pydantic import BaseModel
from pyoxigraph import Quad, Store

from gymfleet_envs.kg.graph import Graph, Words, identifier, link, number
from gymfleet_envs.kg.sampling import LEVELS, draw
from gymfleet_envs.kg.task import KgTask
from gymfleet_envs.kg.worlds import fingerprint
from gymfleet_envs.task_files import read_text
from gymfleet_envs.tasks import GeneratedTasks, TaskDataError

GENERATED_ATTRIBUTES: Final = ("generated.age", "generated.rank", "generated.size")
"""Published triples hold no numbers to compare. These attributes are made up, as their names show."""
_LABELS: Final = "entity2wikidata.json"
_INDEX: Final = "graph.json"
_STORE: Final = "store"
_FORMAT: Final = 1
_DRAWS: Final = 1000
_SUFFIXES: Final = (".txt", ".tsv", ".txt.gz", ".tsv.gz")
_MOST_NAME_CHARS: Final = 256
_MOST_LINE_BYTES: Final = 65_536
_MOST_FILE_BYTES: Final = 4 * 2**30
_MOST_TRIPLES: Final = 50_000_000
_MOST_LABEL_BYTES: Final = 512 * 2**20
_SAMPLED: Final = 50_000
_COUNTS: Final[Mapping[Split, int]] = {"train": 20_000, "validation": 500, "test": 500}
_PROBES: Final = 20
_LEAST_DISTINCT: Final = 5


@dataclass(frozen=True, slots=True)
class _File:
    """A file of triples, and the order of its columns: nations and kinship name the relation first."""

    path: Path
    columns: tuple[int, int, int]
    """The places of subject, relation and object."""


def triple_files(data: Path) -> list[_File]:
    """Return the files in a directory whose lines are three names with tabs between them. Raises `TaskDataError`."""
    paths = sorted(path for path in data.rglob("*") if path.name.endswith(_SUFFIXES) and path.is_file())
    return [_File(path, _columns(path)) for path in paths if _has_tabs(path)]


def is_imported(data: Path) -> bool:
    """Return whether `store_triples` made a directory."""
    return (data / _INDEX).is_file()


def store_triples(source: Path, target: Path) -> None:
    """Load the triples of a directory into a store on disk, which processes share. Raises `TaskDataError`."""
    store = Store(str(target / _STORE))
    graph = Graph(store, Words(_fill(store, source), {}, {}))
    store.optimize()
    index = {
        "format": _FORMAT,
        "generated_attributes": list(GENERATED_ATTRIBUTES),
        "levels": _levels(graph, source),
        "names": dict(graph.words.names),
    }
    (target / _INDEX).write_text(json.dumps(index, ensure_ascii=False), encoding="utf-8")


def triple_tasks(data: Path, graph: Graph, levels: Sequence[str]) -> GeneratedTasks[KgTask]:
    """Return questions about a graph's triples."""

    def generate(rng: random.Random, level: str) -> KgTask:
        for _ in range(_DRAWS):
            if (task := draw(rng, graph, level, data)) is not None:
                return task
        raise TaskDataError(f"kg: the triples in {data} have too few questions of the level {level}")

    return GeneratedTasks("kg", generate, _content, levels=levels, counts=_COUNTS, name="triples")


def open_triples(data: Path) -> tuple[Graph, tuple[str, ...]]:
    """Return the graph of an imported directory, or of the published files, and the levels that it has.

    Raises `TaskDataError`.
    """
    if not is_imported(data):
        store = Store()
        graph = Graph(store, Words(_fill(store, data), {}, {}))
        return graph, tuple(_levels(graph, data))
    try:
        index = _Index.model_validate_json((data / _INDEX).read_bytes())
        return Graph(Store.read_only(str(data / _STORE)), Words(index.names, {}, {})), index.levels
    except (OSError, ValueError) as error:
        raise TaskDataError(f"kg: {data}: damaged, or of another version; import the files again ({error})") from None


class _Index(BaseModel):
    """The index file of an imported store."""

    format: Literal[1]
    levels: tuple[str, ...]
    names: dict[str, str]


def _content(task: KgTask) -> str:
    """Return a text that is the same for a question wherever its triples are kept."""
    return fingerprint(replace(task, source=0))


def _levels(graph: Graph, data: Path) -> list[str]:
    """Return the levels for which a graph has some questions. Raises `TaskDataError` if there is none."""
    levels = [level for level in LEVELS if _has_level(graph, data, level)]
    if not levels:
        raise TaskDataError(f"kg: no question can be asked about the triples in {data}")
    return levels


def _has_level(graph: Graph, data: Path, level: str) -> bool:
    questions = set()
    for place in range(_PROBES):
        task = draw(random.Random(f"kg/probe/{level}/{place}"), graph, level, data)
        questions.add(task and task.question)
        if len(questions - {None}) == _LEAST_DISTINCT:
            return True
    return False


def _fill(store: Store, data: Path) -> dict[str, str]:
    """Put the triples and the made-up numbers into a store, and return the names of all entities."""
    files = triple_files(data)
    if not files:
        raise TaskDataError(
            f"kg: {data} holds no triples: lines of three names with tabs between them, in .txt or .tsv"
        )
    names: dict[str, str] = {}
    labels = _labels(data)
    store.bulk_extend(_statements(files, names, labels))
    store.bulk_extend(
        number(one, attribute, made_up(one, attribute)) for one in names for attribute in GENERATED_ATTRIBUTES
    )
    return names


def made_up(entity: str, attribute: str) -> int:
    """Return a number from 1 to 1,000,000 that is the same on every machine."""
    return int.from_bytes(hashlib.sha256(f"{entity} {attribute}".encode()).digest()[:8], "big") % 1_000_000 + 1


def _statements(files: list[_File], names: dict[str, str], labels: dict[str, str]) -> Iterator[Quad]:
    count = 0
    for file in files:
        for place, row in enumerate(_rows(file.path), start=1):
            subject, relation, other = (row[column] for column in file.columns)
            ids = identifier(subject), identifier(relation), identifier(other)
            if not all(0 < len(one) <= _MOST_NAME_CHARS for one in ids):
                raise TaskDataError(
                    f"kg: {file.path}: triple {place}: a name is empty or too long (over {_MOST_NAME_CHARS} signs)"
                )
            for text, one in ((subject, ids[0]), (other, ids[2])):
                names.setdefault(one, labels.get(text) or _plain(text, one))
            count += 1
            if count > _MOST_TRIPLES:
                raise TaskDataError(f"kg: {file.path}: more than {_MOST_TRIPLES} triples")
            yield link(*ids)


def _plain(text: str, one: str) -> str:
    """Return a name for an entity without a label: Freebase's ids unchanged, words with spaces."""
    return one if text.startswith("/") else text.replace("_", " ").strip().lstrip("#") or one


def _labels(data: Path) -> dict[str, str]:
    """Return Wikidata's labels for Freebase's entities."""
    labels: dict[str, str] = {}
    for path in sorted(data.rglob(_LABELS)):
        try:
            found = json.loads(read_text("kg", path, max_bytes=_MOST_LABEL_BYTES))
        except (ValueError, RecursionError) as error:
            raise TaskDataError(f"kg: {path}: not JSON: {error}") from None
        if not isinstance(found, dict):
            raise TaskDataError(f"kg: {path}: not an object of entities")
        for one, entry in found.items():
            label = entry.get("label") if isinstance(entry, dict) else None
            if isinstance(label, str) and (name := " ".join(label.split()).lstrip("#")[:200]):
                labels[one] = name
    return labels


def _has_tabs(path: Path) -> bool:
    return next((len(row) > 1 for row in _fields(path)), False)


def _columns(path: Path) -> tuple[int, int, int]:
    """Return the order of the columns: the entities' columns share values, and the relation's has its own."""
    seen: tuple[set[str], set[str], set[str]] = (set(), set(), set())
    for row in islice(_rows(path), _SAMPLED):
        for values, value in zip(seen, row, strict=True):
            values.add(value)

    def shared(order: tuple[int, int, int]) -> float:
        left, right = seen[order[0]], seen[order[2]]
        return len(left & right) / min(len(left), len(right))

    # Of equally good orders, take the usual one, which is the first.
    return max(((0, 1, 2), (1, 0, 2), (0, 2, 1)), key=shared)


def _rows(path: Path) -> Iterator[list[str]]:
    for place, row in enumerate(_fields(path), start=1):
        if len(row) != 3 or not all(row):
            raise TaskDataError(f"kg: {path}: line {place}: {len(row)} fields instead of three names with tabs between")
        yield row


def _fields(path: Path) -> Iterator[list[str]]:
    """Yield the fields of each line that is not blank; the file may be compressed, and hostile."""
    read = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            while line := stream.readline(_MOST_LINE_BYTES):
                read += len(line)
                if read > _MOST_FILE_BYTES or len(line) == _MOST_LINE_BYTES:
                    raise TaskDataError(f"kg: {path}: too long, in all or in one line")
                text = line.decode("utf-8-sig" if read == len(line) else "utf-8").strip("\r\n")
                if text:
                    yield [field.strip() for field in text.split("\t")]
    except UnicodeDecodeError:
        raise TaskDataError(f"kg: {path}: not UTF-8") from None
    except (OSError, EOFError, zlib.error) as error:
        raise TaskDataError(f"kg: {path}: damaged: {error}") from None
