"""The report's page as a browser's parser sees it."""

from __future__ import annotations

import base64
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

VOID = ("meta", "img", "br")


class Reader(HTMLParser):
    """Collects tags, attributes, text and scripts, and checks that every element is closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []
        self.scripts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)
        elif not self.open or self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    @property
    def links(self) -> list[str]:
        """Where it leads, pictures left out."""
        found = [value for _, name, value in self.attributes if name in ("href", "src", "srcset")]
        return [link for link in found if not link.startswith("data:image/svg+xml;base64,")]

    @property
    def ids(self) -> list[str]:
        return [value for _, name, value in self.attributes if name == "id"]

    @property
    def pictures(self) -> dict[str, list[str]]:
        """What a picture shows in words -> its data URIs."""
        found: dict[str, list[str]] = {}
        source = ""
        for tag, name, value in self.attributes:
            if tag == "img" and name == "src":
                source = value
            elif tag == "img" and name == "alt":
                found.setdefault(value, []).append(source)
        return found

    @property
    def charts(self) -> dict[str, Any]:
        (data,) = [script for script in self.scripts if script.startswith('{"panels"')]
        return json.loads(data)


def read_page(out_dir: Path) -> Reader:
    page = Reader()
    page.feed((out_dir / "index.html").read_text("utf-8"))
    page.close()
    assert page.open == []
    return page


def decode(uri: str) -> bytes:
    return base64.b64decode(uri.removeprefix("data:image/svg+xml;base64,"))
