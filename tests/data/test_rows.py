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


def read(suffix: str, content: bytes | str) -> list[str]:
    if isinstance(content, str):
        content = content.encode()
    file = io.BytesIO(content)
    return list(read_texts(file, name=f"a{suffix}", suffix=suffix, column="text"))


def parquet(column: str, values: object) -> bytes:
    file = io.BytesIO()
    write_table(pa.table({column: values}), file)
    return file.getvalue()


def test_words_of_json_lines():
    lines = [json.dumps({"n": 1, "text": word}) for word in WORDS]
    assert read(".jsonl", "\n".join(lines)) == WORDS


@pytest.mark.parametrize("indent", [None, 2])
def test_words_of_a_json_array(indent):
    rows = [{"text": row} for row in WORDS]
    assert read(".json", json.dumps(rows, indent=indent)) == WORDS


def test_words_of_csv():
    cells = "".join(f'1,"{word}"\n' for word in WORDS)
    assert read(".csv", "n,text\n" + cells) == WORDS


def test_words_of_parquet():
    assert read(".parquet", parquet("text", WORDS)) == WORDS


def test_words_of_dictionary_encoded_parquet():
    values = pa.array(["a", "b", "a"]).dictionary_encode()
    assert read(".parquet", parquet("text", values)) == ["a", "b", "a"]


@pytest.mark.parametrize("suffix", [".txt", ".csv", ".jsonl"])
def test_a_byte_order_mark_is_no_text(suffix):
    content = {".txt": "one", ".csv": "text\none", ".jsonl": '{"text": "one"}'}[suffix]
    assert read(suffix, "\ufeff" + content) == ["one"]


def test_lines_of_a_text_file_end_at_lf_crlf_and_cr_only():
    assert read(".txt", "a\rb\r\nc\u2028\x0c\x85\0d") == ["a\n", "b\n", "c\u2028\x0c\x85\0d"]


def test_cells_of_csv_may_have_line_feeds_commas_nul_and_any_length():
    long = "x" * 200_000
    assert read(".csv", f'text\n"a\nb, c"\n\0d\n{long}\n') == ["a\nb, c", "\0d", long]


@pytest.mark.parametrize(
    ("suffix", "content", "word"),
    [
        (".jsonl", '{"text": "a"}\n\n{"body": "b"}\n', "row 2.*its columns: body"),
        (".jsonl", '{"text": "a"}\n{"text": null}\n', "row 2.*None"),
        (".jsonl", '{"text": 7}\n', "row 1.*7"),
        (".json", '{"data": [{"text": "a"}]}', "its columns: data"),
        (".csv", "n,text\n1,a\n2\n", "row 2"),
        (".csv", "n;text\n1;a\n", "its columns: n;text"),
        (".parquet", parquet("text", ["a", None]), "row 2"),
        (".parquet", parquet("body", ["a"]), "its columns: body"),
    ],
)
def test_a_row_without_text_is_named(suffix, content, word):
    with raises_one_line(ConfigError, rf"a\{suffix}.*{word}"):
        read(suffix, content)


@pytest.mark.parametrize(
    ("suffix", "content", "word"),
    [
        (".txt", b"caf\xe9\n", "utf-8"),
        (".txt", "word\n".encode("utf-16"), "utf-8"),
        (".csv", "text\na, b\n", "more cells"),
        (".csv", 'text\n"a\nb\n', "row 0"),
        (".jsonl", b'{"text": "caf\xe9"}\n', "utf-8"),
        (".jsonl", '{"text": "a"}\n{"text":\n', "row 1"),
        (".jsonl", '{"text": "\\ud800"}\n', "surrogate"),
        (".jsonl", "[1]\n", "not 1"),
        (".parquet", b"PAR1", "row 0"),
    ],
)
def test_an_unreadable_file_is_named(suffix, content, word):
    with raises_one_line(DataError, rf"a\{suffix}.*{word}"):
        read(suffix, content)


def test_the_format_is_that_before_a_compression():
    assert format_of("data/train-*.jsonl.gz") == ".jsonl"
    with pytest.raises(ConfigError, match="parquet"):
        format_of("data/train.bin")
