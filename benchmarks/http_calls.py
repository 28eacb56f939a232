"""Requests over one persistent connection: the load generators' HTTP client, cheap compared with what it measures."""

import asyncio
import json
from typing import Any, Final, Self
from urllib.parse import urlsplit

_MAX_HEAD: Final = 1 << 16


class HttpCaller:
    """One connection, one request at a time."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = str(parts.hostname), int(parts.port or 80)
        self._prefix = parts.path.rstrip("/")
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port, limit=_MAX_HEAD)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def post(self, path: str, body: Any) -> Any:
        """Return the answer's JSON. Raises `RuntimeError` for any status that is not a success."""
        content = json.dumps(body).encode()
        self._writer.write(
            f"POST {self._prefix}{path} HTTP/1.1\r\nhost: {self._host}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(content)}\r\n\r\n".encode()
            + content
        )
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = int(head.partition("content-length:")[2].partition("\r\n")[0])
        answer = await self._reader.readexactly(length)
        if not head.startswith("http/1.1 2"):
            raise RuntimeError(f"{path}: {head.partition(chr(13))[0]}: {answer[:500]!r}")
        return json.loads(answer)
