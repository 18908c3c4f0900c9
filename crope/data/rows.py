"""Text in the rows of parquet, JSON, CSV and text files, as it is written, by the readers of
`datasets`.

No type is inferred: "007", "NA" and "2020-01-01" are text. A row without text is an error, because
an empty line in its place would be one of the corpus.
"""

import csv
import json
import warnings
from collections.abc import Iterable, Iterator
from glob import escape
from pathlib import PurePath
from typing import Any

from crope.errors import ConfigError, DataError, one_line

FORMATS = (".parquet", ".json", ".jsonl", ".csv", ".txt")
ROWS_AT_ONCE = 1000  # of a parquet file, whose row groups may be gigabytes
CELL_CHARS = 2**31 - 1  # of a CSV file; Python's own limit is 131,072
CSV_OPTIONS = {
    "keep_default_na": False,
    "index_col": False,  # else the first cells of rows that are too long would be an index
    "engine": "python",  # C's reads a missing cell as an empty one
    "skip_blank_lines": False,  # with them that engine would skip the cell ""
}


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
    try:
        for row in _rows(file, suffix, column):
            text = row["text" if suffix == ".txt" else column]
            if not isinstance(text, str):
                raise TypeError(f"it has {text!r:.40}")
            text.encode()  # JSON can write half a character, "\\ud800"
            yield text
            count += 1
    # What `datasets`, pyarrow, pandas, json and gzip raise.
    except (LookupError, TypeError, ValueError, EOFError, Warning) as error:
        raise DataError(
            f"{PurePath(file).name}: no text in data.hub.column={column} at row {count + 1}"
            f" ({type(error).__name__}: {one_line(error)[:200]})"
        ) from error


def _rows(file: str, suffix: str, column: str) -> Iterable[Any]:
    # 0.6 s, which a run on prepared tokens does not need
    from datasets import Features, IterableDataset, Value, logging
    from pandas.errors import ParserWarning

    logging.set_verbosity(logging.CRITICAL)  # what it prints it raises as well
    path = escape(file)  # it takes patterns
    if suffix == ".parquet":
        return IterableDataset.from_parquet(path, columns=[column], batch_size=ROWS_AT_ONCE)
    if suffix == ".csv":
        csv.field_size_limit(CELL_CHARS)
        # Cells beyond the header would be cut with a warning, text after a comma with them.
        warnings.simplefilter("error", ParserWarning)
        features = Features({column: Value("string")})
        return IterableDataset.from_csv(path, features=features, **CSV_OPTIONS)
    lines = IterableDataset.from_text(path, keep_linebreaks=True, encoding="utf-8-sig")
    return lines if suffix == ".txt" else _objects(line["text"] for line in lines)


def _objects(lines: Iterator[str]) -> Iterator[Any]:
    """The objects of JSON lines, or of one array over any number of lines.

    Not by the JSON reader of `datasets`, which infers types from 10 MB at a time: "2020-01-01" as
    the last line after them becomes "2020-01-01 00:00:00".
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
