"""The one canonical form of a text, which its sha256 is taken of and its tokens are made from; read in blocks.

A text may be larger than memory: it is read anew, a block of whole lines at a time, by whoever goes through it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

BLOCK_BYTES = 1 << 20

# One file a split, in the names under which these sets circulate; each line is a blank, words, a blank.
WORD_LINES = ("ptb", "wikitext2", "wikitext2_raw")


@dataclass(frozen=True)
class Document:
    """A text of a corpus: a file, or the text itself. Iterating gives its canonical form in blocks of whole lines.

    Raises UnicodeDecodeError, with the offset in the file, and OSError.
    """

    corpus: str
    source: Path | str

    def __iter__(self) -> Iterator[str]:
        if isinstance(self.source, str):
            yield canonical(self.corpus, self.source)
            return
        with self.source.open("rb") as file:
            while lines := file.readlines(BLOCK_BYTES):
                data = b"".join(lines)
                try:
                    text = data.decode()
                except UnicodeDecodeError as error:
                    before = file.tell() - len(data)
                    ends = (before + error.start, before + error.end)
                    raise UnicodeDecodeError(error.encoding, b"", *ends, error.reason) from None
                yield canonical(self.corpus, text)


def canonical(corpus: str, text: str) -> str:
    """LF ends of line; for the word-level sets a blank at each end of a line, an empty line being one blank.

    Sources differ in just these: the official PG-19 files have CRLF, the hub strips the blanks of PTB and of
    WikiText's empty lines. Applying it twice changes nothing, nor does applying it to whole lines at a time.
    """
    text = text.replace("\r\n", "\n")
    if corpus not in WORD_LINES:
        return text
    stripped = (line.strip(" ") for line in text.removesuffix("\n").split("\n"))
    return "".join(f" {words} \n" if words else " \n" for words in stripped)


def text_sha256(blocks: Iterable[str]) -> str:
    """Of the text that the blocks are together."""
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(block.encode())
    return digest.hexdigest()
