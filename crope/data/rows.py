"""Text in the rows of parquet, JSON, CSV and text files, as it is written.

`datasets` opens, decompresses and streams the files. No type is inferred: "007", "NA" and
"2020-01-01" are text. A row without text is an error, because an empty line in its place would be
one of the corpus.
"""

import csv
import json
from collections.abc import Iterable, Iterator
from glob import escape
from pathlib import PurePath
from typing import Any

from crope.errors import ConfigError, DataError, one_line

FORMATS = (".parquet", ".json", ".jsonl", ".csv", ".txt")
ROWS_AT_ONCE = 1000  # of a parquet file, whose row groups may be gigabytes
CELL_CHARS = 2**31 - 1  # of a CSV file; Python's own limit is 131,072


def format_of(pattern: str) -> str:
    """The one of FORMATS that a file name or pattern has, also before a compression's suffix.
    Raises ConfigError if there is none.
    """
    for suffix in PurePath(pattern).suffixes:
        if suffix in FORMATS:
            return suffix
    raise ConfigError(f"data.hub: {pattern} is none of {', '.join(FORMATS)}")


def read_texts(file: str, suffix: str, column: str) -> Iterator[str]:
    """The text of each row of a file, local or "hf://..."; the rows of a text file are its lines,
    with their line feeds.

    Raises DataError that names file, column and row for one without text.
    """
    count = 0
    if suffix == ".txt":
        column = "text"
    try:
        for row in _rows(file, suffix, column):
            text = row.get(column) if isinstance(row, dict) else None
            # DictReader has the cells beyond the header under None: text after a comma, not quoted.
            if not isinstance(text, str) or None in row:
                raise ValueError(f"the row is {row!r:.100}")
            text.encode()  # JSON can write half a character, "\\ud800"
            yield text
            count += 1
    # What `datasets`, pyarrow, json, csv and gzip raise.
    except (ValueError, EOFError, csv.Error) as error:
        raise DataError(
            f"{PurePath(file).name}: no text in data.hub.column={column} at row {count + 1}"
            f" ({type(error).__name__}: {one_line(error)[:200]})"
        ) from error


def _rows(file: str, suffix: str, column: str) -> Iterable[Any]:
    from datasets import IterableDataset, logging  # 0.6 s, which a run on prepared tokens saves

    logging.set_verbosity(logging.CRITICAL)  # what it prints it raises as well
    path = escape(file)  # it takes patterns
    if suffix == ".parquet":
        return IterableDataset.from_parquet(path, columns=[column], batch_size=ROWS_AT_ONCE)
    # With line breaks: one within a CSV cell, or at the end of a text file, is text.
    rows = IterableDataset.from_text(path, keep_linebreaks=True, encoding="utf-8-sig")
    lines = (row["text"] for row in rows)
    if suffix == ".csv":
        # Not by the reader of `datasets`: its fast engine (pandas) makes an empty text of a cell
        # that is missing, the other one 7 of "007".
        csv.field_size_limit(CELL_CHARS)
        return csv.DictReader(lines, strict=True)
    return rows if suffix == ".txt" else _objects(lines)


def _objects(lines: Iterator[str]) -> Iterator[Any]:
    """The objects of JSON lines, or of one array over any number of lines.

    Not by the reader of `datasets`: it infers types from 10 MB at a time, and "2020-01-01" on the
    line after them becomes "2020-01-01 00:00:00".
    """
    first = next(lines, "")
    try:
        head = json.loads(first)
    except ValueError:
        head = json.loads(first + "".join(lines))
    yield from head if isinstance(head, list) else [head]
    for line in lines:
        if not line.isspace():
            yield json.loads(line)
