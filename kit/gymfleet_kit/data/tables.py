"""Tables of records: Parquet files, read and written in small batches of rows."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import JsonValue

from gymfleet_kit.data.chunks import CHUNK_BYTES, Chunk, DataError, Position

_BATCH_ROWS: Final = 128
_MAX_BATCH_BYTES: Final = 1 << 28
_GROUP_BYTES: Final = 1 << 25


def table_chunks(path: Path, start: Position) -> Iterator[Chunk]:
    """Yield the rows of a table from a place on. Raises `DataError` if it cannot be read."""
    first = start.number
    try:
        with pq.ParquetFile(path, pre_buffer=False) as file:
            kept: list[Any] = []
            size = 0
            for batch in _batches(path, file, start.number):
                kept.append(batch)
                size += batch.nbytes
                if size >= CHUNK_BYTES:
                    yield _chunk(path, file, kept, first)
                    first += sum(one.num_rows for one in kept)
                    kept, size = [], 0
            if kept:
                yield _chunk(path, file, kept, first)
    except pa.ArrowException as error:
        told = " ".join(str(error).split())
        raise DataError(f"{path}: no Parquet file that can be read: {told:.300}") from None


def stream_of(batches: Iterable[Any], schema: Any) -> bytes:
    """Return record batches as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write(batch)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def inferred(records: Sequence[dict[str, Any]]) -> bytes:
    """Return records as an Arrow stream with their own columns. Raises ValueError if no column type fits."""
    # `from_pylist` takes the columns of the first record alone.
    names = dict.fromkeys(name for record in records for name in record)
    try:
        table = pa.Table.from_pydict({name: [record.get(name) for record in records] for name in names})
    except (pa.ArrowException, OverflowError) as error:
        raise ValueError(f"no room in a column: {' '.join(str(error).split()):.200}") from None
    return stream_of(table.to_batches(), table.schema)


def rows(content: bytes) -> Iterator[dict[str, JsonValue]]:
    """Yield the rows of an Arrow stream."""
    with pa.ipc.open_stream(content) as reader:
        for batch in reader:
            yield from batch.to_pylist()


def write_table(path: Path, streams: Iterable[bytes], schema: Any) -> None:
    """Write Arrow streams as one Parquet file with row groups of about 32 MiB, however the streams were cut.

    Raises `DataError` for a schema that Parquet has no room for: that of an object without keys in all rows.
    """
    whole = path.with_name(f"{path.name}.whole")
    try:
        with pq.ParquetWriter(whole, schema, compression="zstd") as writer:
            kept: list[Any] = []
            size = 0
            for content in streams:
                with pa.ipc.open_stream(content) as reader:
                    for batch in reader:
                        kept.append(_cast(batch, schema))
                        size += batch.nbytes
                        if size >= _GROUP_BYTES:
                            writer.write_table(pa.Table.from_batches(kept, schema))
                            kept, size = [], 0
            if kept:
                writer.write_table(pa.Table.from_batches(kept, schema))
    except pa.ArrowException as error:
        whole.unlink(missing_ok=True)
        raise _no_table(path, error) from None
    whole.replace(path)


def common_schema(path: Path, streams: Iterable[bytes]) -> Any:
    """Return a schema for the rows of all streams, or None if there are no streams. Raises `DataError`."""
    found: list[Any] = []
    for content in streams:
        with pa.ipc.open_stream(content) as reader:
            if reader.schema not in found:
                found.append(reader.schema)
    try:
        return pa.unify_schemas(found, promote_options="permissive") if found else None
    except pa.ArrowException as error:
        raise _no_table(path, error) from None


def _no_table(path: Path, error: Exception) -> DataError:
    told = " ".join(str(error).split())
    return DataError(f"{path}: its records do not fit into one table; write a .jsonl file: {told:.200}")


def _cast(batch: Any, schema: Any) -> Any:
    return batch if batch.schema.equals(schema) else batch.cast(schema)


def _batches(path: Path, file: Any, skipped: int) -> Iterator[Any]:
    """Yield small batches, without the first rows of the file."""
    for group in range(file.metadata.num_row_groups):
        num_rows = file.metadata.row_group(group).num_rows
        if skipped >= num_rows:
            skipped -= num_rows
            continue
        for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group]):
            if skipped >= batch.num_rows:
                skipped -= batch.num_rows
                continue
            if batch.nbytes > _MAX_BATCH_BYTES:
                raise DataError(f"{path}: {batch.num_rows} rows have {batch.nbytes} bytes; split them")
            yield batch.slice(skipped)
            skipped = 0


def _chunk(path: Path, file: Any, batches: list[Any], first: int) -> Chunk:
    end = first + sum(batch.num_rows for batch in batches)
    passed_bytes = path.stat().st_size * end // file.metadata.num_rows
    return Chunk(path, "row", stream_of(batches, batches[0].schema), first + 1, Position(end, end), passed_bytes)
