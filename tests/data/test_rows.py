"""Rows of each file format: the text as it was written, or an error that names file and row."""

import io
import json

import pyarrow as pa
import pytest
from fsspec import open_files
from pyarrow.parquet import write_table

from crope.data.rows import read_texts
from crope.errors import DataError
from tests.conftest import raises_one_line

# Words, numbers and dates that other readers take for missing cells, numbers and dates.
WORDS = ["words", "NA", "None", "null", "nan", "N/A", "", "007", "3.50", "true", "2020-01-01"]


@pytest.fixture
def read(tmp_path):
    """The texts of column `text` of a file with this suffix and content."""

    def read(suffix, content):
        file = tmp_path / f"a{suffix}"
        if isinstance(content, str):
            content = content.encode()
        file.write_bytes(content)
        return list(read_texts(open_files(file)[0], "text"))

    return read


def parquet(name, values, metadata=None):
    file = io.BytesIO()
    write_table(pa.table({name: values, "n": range(len(values))}, metadata=metadata), file)
    return file.getvalue()


JSON_LINES = "\n\n".join(json.dumps({"n": 1, "text": word}) for word in WORDS)
OF_A_NEWER_LIBRARY = {"huggingface": '{"info": {"features": {"n": {"_type": "Unknown"}}}}'}


@pytest.mark.parametrize(
    ("suffix", "content"),
    [
        (".jsonl", JSON_LINES),
        (".parquet", parquet("text", WORDS)),
        (".parquet", parquet("text", WORDS, OF_A_NEWER_LIBRARY)),
    ],
)
def test_words_are_text_as_it_is_written(read, suffix, content):
    assert read(suffix, content) == [f"{word}\n" for word in WORDS]


def test_a_line_feed_that_a_row_has_is_that_of_its_line(read):
    assert read(".parquet", parquet("text", ["one\n", "two"])) == ["one\n", "two\n"]
    assert read(".txt", "one\ntwo") == ["one\n", "two"]


def test_a_byte_order_mark_is_no_text(read):
    assert read(".jsonl", '\ufeff{"text": "one"}') == ["one\n"]


@pytest.mark.parametrize(
    ("suffix", "content", "word"),
    [
        (".jsonl", '{"text": "a"}\n\n{"body": "b"}\n', "row 2 .*body"),
        (".jsonl", '{"text": "\\ud800"}\n', "row 1 .*surrogate"),
        (".jsonl", b'{"text": "caf\xe9"}\n', "row 1 .*utf-8"),
        (".json", '[{"text": "a"}]\n', "row 1 .*a"),
        (".json", '[\n{"text": "a"}\n]\n', "row 1 .*JSON"),
        (".parquet", parquet("text", ["a", None]), "row 2 .*None"),
        (".parquet", parquet("text", [7]), "row 1 .*7"),
        (".parquet", parquet("body", ["a"]), "row 1 "),
    ],
)
def test_a_row_without_text_is_named(read, suffix, content, word):
    with raises_one_line(DataError, rf"a\{suffix}: no text in data.hub.column=text at {word}"):
        read(suffix, content)
