"""The page in a browser: no console error, charts drawn, both themes, nothing wider than a narrow screen."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from crope.report import build_report, style
from tests.report.conftest import make_cells, make_study, read_source

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run",
    "--enable-logging=stderr", "--v=0", "--virtual-time-budget=20000", "--dump-dom",
)  # fmt: skip
MEASURE = """
addEventListener("load", () => setTimeout(() => parent.postMessage(JSON.stringify({
  width: innerWidth, needed: document.documentElement.scrollWidth,
  wider: [...document.querySelectorAll("body *")].filter((one) => !one.closest(".scroll")
    && one.getBoundingClientRect().right > innerWidth + 1).map((one) => one.outerHTML.slice(0, 80)),
  charts: [...document.querySelectorAll(".chart")].map((one) => one.querySelectorAll(".scatterlayer .trace").length),
  strokes: [...document.querySelectorAll(".chart .js-line")].map((one) => one.style.stroke),
  background: getComputedStyle(document.body).backgroundColor,
  shown: [...document.querySelectorAll("#figures ~ figure img")].filter((one) => one.offsetWidth)
    .map((one) => one.className),
}), "*"), 2000));
"""
FRAME = """<body><iframe src="{page}" width="400" height="4000"></iframe>
<script>addEventListener("message", (event) => {{ document.title = event.data; }});</script></body>"""


def open_page(page: Path, profile: Path) -> tuple[str, list[str]]:
    """The document after its scripts, and what they said on the console."""
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return done.stdout, re.findall(r"CONSOLE.*", done.stderr)


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    if not CHROMIUM:
        pytest.skip("no Chromium is installed")
    folder = tmp_path_factory.mktemp("browser")
    make_study(folder / "runs", seeds=range(3), noise=0.05)
    build_report(read_source(folder / "runs"), make_cells(), unavailable={}, out_dir=folder / "report")
    return folder / "report" / "index.html"


@pytest.fixture(params=["light", "dark"])
def measured(request, page: Path, tmp_path: Path) -> dict:
    """What the page measures of itself, 400 pixels wide, in one theme."""
    text = page.read_text("utf-8").replace("</body>", f"<script>{MEASURE}</script></body>")
    (page.parent / "measured.html").write_text(text, "utf-8")
    frame = page.parent / "frame.html"
    frame.write_text(FRAME.format(page=f"measured.html?theme={request.param}"), "utf-8")
    dom, console = open_page(frame, tmp_path / "profile")
    assert console == []
    return json.loads(html.unescape(re.search(r"<title>(\{.*?\})</title>", dom)[1])) | {"theme": request.param}


def test_it_opens_without_a_word_on_the_console(page: Path, tmp_path: Path) -> None:
    dom, console = open_page(page, tmp_path / "profile")
    assert console == []
    assert dom.count('class="main-svg"') >= 6 and "Every run's curve" in dom


def test_a_word_on_the_console_would_be_noticed(page: Path, tmp_path: Path) -> None:
    """The same look at a page that breaks, and at one that asks the network for something."""
    text = page.read_text("utf-8")
    for number, script in enumerate(("undefined.x", "fetch('https://example.org/')")):
        broken = tmp_path / f"{number}.html"
        broken.write_text(text.replace("</body>", f"<script>{script}</script></body>"), "utf-8")
        assert open_page(broken, tmp_path / f"profile{number}")[1]


def test_a_narrow_screen_scrolls_nothing_but_tables(measured: dict) -> None:
    assert measured["width"] == 400 and measured["needed"] <= 400
    assert measured["wider"] == []


def test_charts_have_a_line_a_run_in_the_themes_colours(measured: dict) -> None:
    theme = {"light": style.LIGHT, "dark": style.DARK}[measured["theme"]]
    assert measured["charts"] == [9] * 6  # three models, three seeds
    wanted = {f"rgb({int(c[1:3], 16)}, {int(c[3:5], 16)}, {int(c[5:7], 16)})" for c in theme.models.values()}
    assert set(measured["strokes"]) == wanted


def test_the_theme_is_one_of_two_whole_ones(measured: dict) -> None:
    dark = measured["theme"] == "dark"
    assert measured["background"] == ("rgb(23, 27, 33)" if dark else "rgb(255, 255, 255)")
    assert set(measured["shown"]) == {"dark-only" if dark else "light-only"}
