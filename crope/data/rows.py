"""Text in the rows of parquet, JSON, CSV and text files, as it is written.

No type is inferred: "007", "NA" and "2020-01-01" are text. A row without text is an error, because
an empty line in its place would be one of the corpus.
"""

import csv
import io
import json
from collections.abc import Iterator
from pathlib import PurePath
from typing import IO, Any

from crope.errors import ConfigError, DataError, one_line

ROWS_AT_ONCE = 1000  # of a parquet file
BUFFER_BYTES = 1 << 20  # read at once of a parquet column, whose row groups may be gigabytes
CELL_CHARS = 2**31 - 1  # of a CSV file; Python's own limit is 131,072


def format_of(pattern: str) -> str:
    """The suffix of READERS that a file name or pattern has, also before one of a compression.
    Raises ConfigError if there is none.
    """
    for suffix in PurePath(pattern).suffixes:
        if suffix in READERS:
            return suffix
    raise ConfigError(f"data.hub: {pattern} is none of {', '.join(READERS)}")


def read_texts(file: IO[bytes], *, name: str, suffix: str, column: str) -> Iterator[str]:
    """The text of each row of a file; the rows of a text file are its lines, with their line feeds.

    Raises ConfigError for a row without text in `column`, DataError if the file cannot be read;
    both name the file and the row.
    """
    number = 0
    try:
        for number, row in enumerate(READERS[suffix](file, column), 1):
            if not isinstance(row, dict):
                raise ValueError(f"a row is an object with columns, not {row!r}")
            text = row.get(column)
            if not isinstance(text, str):
                raise ConfigError(
                    f"{name}: row {number} has no text in data.hub.column={column} but {text!r:.40};"
                    f" its columns: {', '.join(map(str, row))}"
                )
            text.encode()  # JSON can write half a character, "\\ud800"
            yield text
    # ValueError: also of UTF-8, JSON and pyarrow; EOFError: of a compression.
    except (ValueError, EOFError, csv.Error) as error:
        reason = one_line(error)[:200]
        raise DataError(f"{name}: not readable after row {number} ({reason})") from error


def _parquet(file: IO[bytes], column: str) -> Iterator[Any]:
    from pyarrow.parquet import ParquetFile  # 0.2 s, which a run on prepared tokens does not need

    table = ParquetFile(file, buffer_size=BUFFER_BYTES)
    names = table.schema_arrow.names
    # Without the column all others are read: the error names them.
    columns = [column] if column in names else names
    for batch in table.iter_batches(ROWS_AT_ONCE, columns=columns):
        yield from batch.to_pylist()


def _json(file: IO[bytes], column: str) -> Iterator[Any]:
    """The objects of JSON lines, or of an array over any number of lines."""
    text = _decoded(file)
    head = text.readline()
    try:
        first = json.loads(head)
    except ValueError:
        first = json.loads(head + text.read())
    yield from first if isinstance(first, list) else [first]
    for line in text:
        if not line.isspace():
            yield json.loads(line)


def _csv(file: IO[bytes], column: str) -> Iterator[Any]:
    csv.field_size_limit(CELL_CHARS)
    for row in csv.DictReader(_decoded(file, newline=""), strict=True):
        if None in row:
            raise ValueError("a row has more cells than the header: quote cells with commas")
        yield row


def _text(file: IO[bytes], column: str) -> Iterator[Any]:
    for line in _decoded(file):
        yield {"text": line}


def _decoded(file: IO[bytes], newline: str | None = None) -> io.TextIOWrapper:
    """The file in text mode, without its byte order mark."""
    return io.TextIOWrapper(file, encoding="utf-8-sig", newline=newline)


READERS = {".parquet": _parquet, ".json": _json, ".jsonl": _json, ".csv": _csv, ".txt": _text}
