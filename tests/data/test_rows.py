"""Rows of each file format: the text as it was written, or an error that names file and row."""

import io
import json

import pyarrow as pa
import pytest
from pyarrow.parquet import write_table

from crope.data.rows import format_of, read_texts
from crope.errors import ConfigError, DataError
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
        return list(read_texts(str(file), suffix, "text"))

    return read


def parquet(name, values):
    file = io.BytesIO()
    write_table(pa.table({name: values}), file)
    return file.getvalue()


ROWS = [{"n": 1, "text": word} for word in WORDS]


@pytest.mark.parametrize(
    ("suffix", "content"),
    [
        (".jsonl", "\n".join(map(json.dumps, ROWS))),
        (".json", json.dumps(ROWS)),
        (".json", json.dumps(ROWS, indent=2)),
        (".csv", "n,text\n" + "".join(f'1,"{word}"\n' for word in WORDS)),
        (".parquet", parquet("text", WORDS)),
    ],
)
def test_words_are_text_as_it_is_written(read, suffix, content):
    assert read(suffix, content) == WORDS


def test_a_date_after_10_mb_of_json_is_text(read):
    """The JSON reader of `datasets` would make "2020-01-01 00:00:00" of it."""
    line = json.dumps({"text": "word " * 20_000}) + "\n"
    rows = read(".jsonl", 105 * line + '{"text": "2020-01-01"}\n')
    assert (len(rows), rows[-1]) == (106, "2020-01-01")


def test_numbers_of_csv_are_text(read):
    """Where no word is among them. An empty line is none of the rows."""
    assert read(".csv", 'text\n007\n\n3.50\n""\n1e400\n') == ["007", "3.50", "", "1e400"]


@pytest.mark.parametrize(
    ("suffix", "content"),
    [
        (".txt", "one"),
        (".csv", "text\none"),
        (".jsonl", '{"text": "one"}'),
    ],
)
def test_a_byte_order_mark_is_no_text(read, suffix, content):
    assert read(suffix, "\ufeff" + content) == ["one"]


def test_cells_of_csv_may_have_line_feeds_commas_nul_and_any_length(read):
    long = "x" * 200_000
    assert read(".csv", f'text\n"a\nb, c"\n\0d\n{long}\n') == ["a\nb, c", "\0d", long]


@pytest.mark.parametrize(
    ("suffix", "content", "word"),
    [
        (".jsonl", '{"text": "a"}\n\n{"body": "b"}\n', "row 2 .*body"),
        (".jsonl", '{"text": "a"}\n{"text":\n', "row 2 .*JSON"),
        (".jsonl", '{"text": "\\ud800"}\n', "row 1 .*surrogate"),
        (".jsonl", b'{"text": "caf\xe9"}\n', "row 1 .*utf-8"),
        (".jsonl", "[1]\n", "row 1 .*is 1"),
        (".csv", "n,text\n1,a\n2\n", "row 2 .*None"),
        (".csv", "text\na\nb, c\n", "row 2 .* c"),
        (".csv", 'text\n"a\nb\n', "row 1 .*end of data"),
        (".parquet", parquet("text", ["a", None]), "row 2 .*None"),
        (".parquet", parquet("body", ["a"]), "row 1 .*body"),
        (".parquet", b"PAR1", "row 1 .*footer"),
    ],
)
def test_a_row_without_text_is_named(read, suffix, content, word):
    with raises_one_line(DataError, rf"a\{suffix}: no text in data.hub.column=text at {word}"):
        read(suffix, content)


def test_the_format_is_that_before_a_compression():
    assert format_of("data/train-*.jsonl.gz") == ".jsonl"
    with pytest.raises(ConfigError, match="parquet"):
        format_of("data/train.bin")
