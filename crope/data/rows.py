"""Text in the rows of parquet, JSON-lines and text files, as it is written.

No type is inferred: "007", "NA" and "2020-01-01" are text. A row without text is an error: an empty
line in its place would enter the corpus.
"""

import json
from collections.abc import Iterator
from glob import escape
from pathlib import PurePath
from typing import Any

from crope.errors import ConfigError, DataError, one_line

FORMATS = (".parquet", ".jsonl", ".json", ".txt")  # .json: lines too


def format_of(pattern: str) -> str:
    """Returns the format (of FORMATS) of a file name or pattern, also before a compression suffix.
    Raises ConfigError if it has none.
    """
    for suffix in PurePath(pattern).suffixes:
        if suffix in FORMATS:
            return suffix
    raise ConfigError(
        f"data.hub: {pattern} is none of {', '.join(FORMATS)}; convert it (data/README.md)"
    )


def read_texts(file: Any, column: str) -> Iterator[str]:
    """Yields the text of each row of an `fsspec.core.OpenFile` as whole lines: not all files store
    a row's line feed. A text file stays as it is.

    Raises DataError that names file, column and row if a row has no text.
    """
    count = 0
    suffix = format_of(file.path)
    try:
        for row in _rows(file, suffix, column):
            text = row.get(column) if isinstance(row, dict) else None
            if not isinstance(text, str):
                raise ValueError(f"the row is {row!r:.100}")
            text.encode()  # JSON can write half a character, "\\ud800"
            yield text if suffix == ".txt" or text.endswith("\n") else f"{text}\n"
            count += 1
    except (ValueError, EOFError) as error:  # what pyarrow, json, UTF-8 and gzip raise
        raise DataError(
            f"{PurePath(file.path).name}: no text in data.hub.column={column} at row {count + 1}"
            f" ({type(error).__name__}: {one_line(error)[:200]})"
        ) from error


def _rows(file: Any, suffix: str, column: str) -> Iterator[Any]:
    """Yields a file's rows: of parquet by pyarrow, since `datasets` casts them to the writer's
    types; of other formats from the lines that `datasets` opens.
    """
    # Neither is needed by a run on prepared tokens.
    from datasets import load_dataset
    from pyarrow.parquet import ParquetFile

    if suffix == ".parquet":
        with file as opened:
            # So many rows at a time, because row groups may be gigabytes.
            for batch in ParquetFile(opened).iter_batches(1000, columns=[column]):
                yield from batch.to_pylist()
        return
    options = {"keep_linebreaks": True, "encoding": "utf-8-sig"}
    files = [escape(file.full_name)]  # it takes them for patterns
    lines = load_dataset("text", data_files=files, split="train", streaming=True, **options)
    for line in lines:
        text = line["text"]
        if suffix == ".txt":
            yield {column: text}
        elif not text.isspace():
            yield json.loads(text)
