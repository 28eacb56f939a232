"""Freebase behind a SPARQL endpoint. If it fails to answer, that is a technical failure and not an empty answer."""

import json
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

import httpx

from gymfleet_envs.environment import EngineLost
from gymfleet_envs.kg.benchmark import Ontology
from gymfleet_envs.kg.graph import UNTYPED
from gymfleet_envs.kg.options import KgOptions
from gymfleet_envs.kg.program import FREEBASE_ID, RELATION, Count, Program
from gymfleet_envs.kg.sparql import NAMESPACE, links_query, members_query, range_query

_KEPT: Final = 10_000
_ACCEPTED: Final = {"Accept": "application/sparql-results+json"}
_ZONE: Final = "-08:00"
"""The time zone that Virtuoso adds to Freebase's dates; the gold answers do not have it."""
Row = Mapping[str, Mapping[str, str]]


class Endpoint:
    """Freebase as a knowledge base. One object serves all threads of a process."""

    def __init__(self, options: KgOptions, ontology: Ontology) -> None:
        self._url = str(options.endpoint)
        self._options = options
        self._ontology = ontology
        limits = httpx.Limits(max_connections=options.connections, max_keepalive_connections=options.connections)
        before_s = options.query_timeout_s / 4
        timeout = httpx.Timeout(options.query_timeout_s, connect=before_s, pool=before_s)
        self._http = httpx.Client(timeout=timeout, limits=limits, headers=_ACCEPTED, trust_env=False)
        weakref.finalize(self, self._http.close)
        self._links: OrderedDict[Program | str, tuple[tuple[str, ...], tuple[str, ...]]] = OrderedDict()
        self._lock = threading.Lock()
        self._range = lru_cache(_KEPT)(self._asked_range)

    def check(self) -> None:
        """Send a query for anything at all. Raises `EngineLost` if nobody answers."""
        self._rows("SELECT ?x WHERE { ?x ?y ?z } LIMIT 1")

    def is_entity(self, text: str) -> bool:
        """Return whether a text has the form of Freebase's ids."""
        return FREEBASE_ID.fullmatch(text) is not None

    def relations(self, what: Program | str) -> tuple[str, ...]:
        """Return the relations in AgentBench's list that lead on. Raises `EngineLost`."""
        return self._leads_on(what)[0]

    def attributes(self, what: Program) -> tuple[str, ...]:
        """Return the attributes in AgentBench's list. Raises `EngineLost`."""
        return self._leads_on(what)[1]

    def range_of(self, relation: str) -> str:
        """Return the type of the entities that a relation leads to. Raises `EngineLost`."""
        return self._ontology.ranges.get(relation) or (UNTYPED if self._ontology.ranges else self._range(relation))

    def members(self, program: Program) -> frozenset[str] | None:
        """Return a set's members; None if there are more than allowed. Raises `EngineLost`."""
        rows = self._rows(members_query(program, self._options.max_rows))
        if len(rows) > self._options.max_rows:
            return None
        return frozenset(_short(value) for row in rows for value in row.values())

    def _leads_on(self, what: Program | str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        if isinstance(what, Count):
            return (), ()
        with self._lock:
            if (known := self._links.get(what)) is not None:
                return known
        if self._ontology.relations:
            names = self._names(self._rows(links_query(what, literals=False)))
            relations, attributes = names & self._ontology.relations, names & self._ontology.attributes
        else:
            rows = self._rows(links_query(what, literals=True))
            attributes = self._names(row for row in rows if row["literal"]["value"] in ("true", "1"))
            relations = self._names(row for row in rows if row["literal"]["value"] not in ("true", "1"))
        known = (tuple(sorted(relations)), tuple(sorted(attributes)))
        with self._lock:
            self._links[what] = known
            if len(self._links) > _KEPT:
                self._links.popitem(last=False)
        return known

    def _names(self, rows: Iterable[Row]) -> set[str]:
        """Return Freebase's own names that can be used in a call and in a query."""
        found = (row["rel"]["value"] for row in rows)
        names = (value.removeprefix(NAMESPACE) for value in found if value.startswith(NAMESPACE))
        return {name for name in names if RELATION.fullmatch(name)}

    def _asked_range(self, relation: str) -> str:
        rows = self._rows(range_query(relation))
        return _short(rows[0]["type"]) if rows else UNTYPED

    def _rows(self, query: str) -> list[Row]:
        """Return all bindings of a query. Raises `EngineLost`."""
        try:
            try:
                content = self._fetched(query)
            except (httpx.ConnectError, httpx.RemoteProtocolError):  # it was restarted, or closed an idle connection
                content = self._fetched(query)
            return _bindings(content)
        except httpx.TimeoutException as error:
            raise EngineLost(f"{self._url}: no answer within {self._options.query_timeout_s:g} s") from error
        except httpx.HTTPError as error:
            raise EngineLost(f"{self._url}: {type(error).__name__}: {error}") from error
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise EngineLost(f"{self._url}: not the results of a query: {error!r}") from error

    def _fetched(self, query: str) -> bytes:
        until = time.monotonic() + self._options.query_timeout_s
        with self._http.stream("POST", self._url, data={"query": query}) as response:
            content = bytearray()
            for piece in response.iter_bytes():
                content += piece
                if time.monotonic() > until:  # the client's own limit is for each piece
                    raise httpx.ReadTimeout("the answer did not end")
                if len(content) > self._options.max_response_bytes:
                    raise EngineLost(f"{self._url}: an answer of more than {self._options.max_response_bytes} bytes")
            if response.status_code != httpx.codes.OK:
                said = bytes(content[:200]).decode(errors="replace")
                raise EngineLost(f"{self._url}: status {response.status_code}: {said}")
            if "x-sql-state" in response.headers:  # Virtuoso ran out of time, and shows what it has so far
                raise EngineLost(
                    f"{self._url}: a part of the answer: {response.headers.get('x-sql-message', '')[:200]}"
                )
        return bytes(content)


def _bindings(content: bytes) -> list[Row]:
    found: Any = json.loads(content)["results"]["bindings"]
    for row in found:
        for value in row.values():
            if not isinstance(value["value"], str):
                raise TypeError("a value is no text")
    return list(found)


def _short(value: Mapping[str, str]) -> str:
    return value["value"].removeprefix(NAMESPACE).replace(_ZONE, "")
