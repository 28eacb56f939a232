"""Vectors from a real HTTP server: import, search by meaning, and failures that are never empty results."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymfleet_envs.environment import EngineLost
from gymfleet_envs.searchqa.corpus import Dense, Hybrid
from gymfleet_envs.searchqa.options import SearchQAOptions
from gymfleet_envs.searchqa.store import open_store, write_store
from gymfleet_envs.searchqa.tasks import published_questions
from gymfleet_envs.tasks import TaskDataError

WORDS = ("car", "automobile", "apple", "fruit", "sea")
MEANING = {"car": (1, 0, 0), "automobile": (0.8, 0.6, 0), "apple": (0, 1, 0.2), "fruit": (0, 1, 0), "sea": (0, 0, 1)}
PASSAGES = ("car", "apple", "sea")


class Server(ThreadingHTTPServer):
    """An embedding server that knows five words, and can be told to misbehave."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.answers: list[tuple[int, bytes]] = []
        """What is answered instead, once each."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert self.path == "/v1/embeddings"
        self.server.asked.append(body)
        self.server.keys.append(self.headers["authorization"])
        status, content = self.server.answers.pop(0) if self.server.answers else (200, answered(body["input"]))
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


def answered(texts: list[str]) -> bytes:
    vectors = [np.sum([MEANING[word] for word in WORDS if word in text], axis=0) * 3.0 for text in texts]
    rows = [{"index": i, "embedding": list(vector)} for i, vector in enumerate(vectors)]
    return json.dumps({"data": rows[::-1]}).encode()  # the index counts, and not the order


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def options(server: Server, **more: Any) -> SearchQAOptions:
    given: dict[str, Any] = {"search": "dense", "embeddings_url": server.url, "embeddings_model": "words"}
    return SearchQAOptions(**{**given, "passage_prefix": "passage: ", "query_prefix": "query: ", **more})


def imported(server: Server, directory: Path) -> Path:
    source, target = directory / "source", directory / "target"
    source.mkdir()
    target.mkdir()
    lines = [{"title": "", "text": word} for word in PASSAGES]
    (source / "corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (source / "questions.jsonl").write_text('{"question": "What drives?", "answer": "car"}\n')
    write_store(source, target, options(server))
    return target


def test_vectors_are_made_at_import_and_queries_embedded_when_played(server: Server, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sesame\n")
    target = imported(server, tmp_path)
    assert [one["input"] for one in server.asked] == [[f"passage: \n{word}" for word in PASSAGES]]
    assert server.asked[0]["model"] == "words"
    assert np.allclose(np.load(target / "vectors.npy"), [(1, 0, 0), np.array((0, 1, 0.2)) / 1.04**0.5, (0, 0, 1)])

    corpus, _, _ = open_store(target, options(server, embeddings_key_file=tmp_path / "key"))

    assert corpus.search("automobile", 2) == [0, 1], "0.8 of the car, 0.6 / 1.04 ** 0.5 of the apple"
    assert corpus.search("fruit", 3) == [1, 0, 2]
    assert corpus.search(" ", 3) == []
    assert server.asked[1]["input"] == ["query: automobile"]
    assert server.keys == [None, "Bearer sesame", "Bearer sesame"]


def test_words_alone_find_other_passages_and_both_together_merge(server: Server, tmp_path: Path) -> None:
    target = imported(server, tmp_path)
    by_words, by_both = (open_store(target, options(server, search=kind))[0] for kind in ("bm25", "hybrid"))

    assert by_words.search("automobile sea", 3) == [2]
    # Vectors: sea 1 / 2 ** 0.5, car 0.8 / 2 ** 0.5, apple less. Words: sea. So sea has 1/61 + 1/61, car 1/62.
    assert by_both.search("automobile sea", 3) == [2, 0, 1]
    assert by_both.search("automobile", 3) == [0, 1, 2], "words find nothing: the ranking by vectors is left"


def test_reciprocal_ranks_are_summed() -> None:
    class Ranking:
        def __init__(self, *numbers: int) -> None:
            self.numbers = list(numbers)

        def search(self, text: str, limit: int) -> list[int]:
            return self.numbers[:limit]

    # 1/61 = 0.01639; 1/62 + 1/63 = 0.03200; 1/63 + 1/61 = 0.03227; 1/62 alone = 0.01613
    assert Hybrid(Ranking(7, 5, 3), Ranking(3, 9, 5)).search("", 4) == [3, 5, 7, 9]


def test_equally_near_passages_stand_in_the_corpus_order() -> None:
    dense = Dense(
        np.array([(0, 1), (1, 0), (0, 1), (1, 0), (1, 0)], np.float32), lambda _: np.array([(1, 0)], np.float32)
    )

    assert dense.search("x", 2) == [1, 3]
    assert dense.search("x", 9) == [1, 3, 4, 0, 2]


@pytest.mark.parametrize(
    ("status", "content", "told"),
    [
        (503, b"busy", "status 503: busy"),
        (200, b"{", "no list of embeddings"),
        (200, b'{"data": []}', "vectors of the shape"),
        (200, b'{"data": [{"index": 0, "embedding": [0, 0, 0]}]}', "a vector of no length"),
        (200, b'{"data": [{"index": 0, "embedding": [1, NaN, 0]}]}', "a vector of no length"),
        (200, b'{"data": [{"index": 0, "embedding": [1, 2]}]}', "vectors of queries have 2 numbers, passages' 3"),
        (200, b'{"data": [{"index": 0, "embedding": "x"}]}', "no list of embeddings"),
        (302, b"", "status 302"),
    ],
)
def test_a_failure_loses_the_session_and_is_no_empty_result(
    server: Server, tmp_path: Path, status: int, content: bytes, told: str
) -> None:
    corpus, _, _ = open_store(imported(server, tmp_path), options(server))
    server.answers = [(status, content)] * 2

    with pytest.raises(EngineLost, match=told):
        corpus.search("car", 3)

    server.answers.clear()
    assert corpus.search("car", 1) == [0], "and the next search is made"


def test_a_failure_is_tried_once_more(server: Server, tmp_path: Path) -> None:
    corpus, _, _ = open_store(imported(server, tmp_path), options(server))
    server.answers = [(500, b"")]

    assert corpus.search("car", 1) == [0]


def test_an_import_without_vectors_says_where_it_broke_off(server: Server, tmp_path: Path) -> None:
    server.answers = [(500, b"no")] * 2

    with pytest.raises(TaskDataError, match=r"no vectors of the passages from 0 on: words at .*: status 500: no"):
        imported(server, tmp_path)

    assert not (tmp_path / "target" / "searchqa.json").exists()


def test_vectors_of_another_model_are_not_compared(server: Server, tmp_path: Path) -> None:
    target = imported(server, tmp_path)

    for other in ({"embeddings_model": "other"}, {"passage_prefix": ""}):
        with pytest.raises(TaskDataError, match="import the files again with these options"):
            open_store(target, options(server, **other))
    with pytest.raises(TaskDataError, match="run `gymfleet data import searchqa` on it"):
        published_questions(tmp_path / "source", options(server))
