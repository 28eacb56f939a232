"""Vectors of an embedding model, requested over an OpenAI-compatible API."""

import json
import time
from collections.abc import Sequence
from typing import Any, Final

import httpx
import numpy as np
import numpy.typing as npt

from gymfleet_envs.searchqa.options import SearchQAOptions

ATTEMPTS: Final = 2
_MAX_RESPONSE_BYTES: Final = 64 * 2**20
_MAX_DIMENSIONS: Final = 16_384


class EmbeddingsFailed(Exception):
    """The server returned no vectors. The message has the model, the server and the response."""


class Embeddings:
    """One model on one server; thread-safe. Other settings of the machine, such as a proxy, are not used."""

    def __init__(self, options: SearchQAOptions) -> None:
        self._url = f"{str(options.embeddings_url).rstrip('/')}/embeddings"
        self._model = options.embeddings_model
        key = options.embeddings_key_file.read_text(encoding="utf-8").strip() if options.embeddings_key_file else ""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._timeout_s = options.embeddings_timeout_s
        self._http = httpx.Client(headers=headers, timeout=self._timeout_s, trust_env=False)

    def __call__(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Return the vectors of some texts (N, D), each of length 1. Raises `EmbeddingsFailed`."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return _vectors(self._asked(texts), len(texts))
            except (httpx.HTTPError, EmbeddingsFailed) as error:
                if attempt == ATTEMPTS:
                    told = str(error) or type(error).__name__
                    raise EmbeddingsFailed(f"{self._model} at {self._url}: {told[:300]}") from None
        raise AssertionError("unreachable")

    def _asked(self, texts: Sequence[str]) -> bytes:
        """Return the body of the answer, which must arrive within the time limit, however slowly its pieces come."""
        body = {"model": self._model, "input": list(texts), "encoding_format": "float"}
        deadline = time.monotonic() + self._timeout_s
        received = bytearray()
        with self._http.stream("POST", self._url, json=body) as response:
            for piece in response.iter_bytes():
                received += piece
                if len(received) > _MAX_RESPONSE_BYTES:
                    raise EmbeddingsFailed(f"an answer of more than {_MAX_RESPONSE_BYTES} bytes")
                if time.monotonic() > deadline:
                    raise EmbeddingsFailed(f"no whole answer within {self._timeout_s:g} s")
            if response.status_code != httpx.codes.OK:
                raise EmbeddingsFailed(
                    f"status {response.status_code}: {bytes(received[:200]).decode(errors='replace')}"
                )
        return bytes(received)


def _vectors(body: bytes, count: int) -> npt.NDArray[np.float32]:
    try:
        rows: list[Any] = json.loads(body)["data"]
        rows = sorted(rows, key=lambda row: row["index"])
        vectors = np.array([row["embedding"] for row in rows], np.float32)
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise EmbeddingsFailed(f"no list of embeddings: {type(error).__name__} {error}") from None
    if vectors.ndim != 2 or len(vectors) != count or not 0 < vectors.shape[1] <= _MAX_DIMENSIONS:
        raise EmbeddingsFailed(f"vectors of the shape {vectors.shape} for {count} texts")
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not np.isfinite(lengths).all() or not (lengths > 0).all():
        raise EmbeddingsFailed("a vector of no length, or of numbers that are none")
    unit: npt.NDArray[np.float32] = vectors / lengths
    return unit
