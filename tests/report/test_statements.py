"""What the page says of its runs as a whole: what they can tell, what they cannot, and how they were made."""

from __future__ import annotations

import re

import pytest

from crope import config, paper
from crope.report import theory
from crope.report.findings import find
from crope.report.frame import resolve_cells
from crope.report.protocol import open_settings, stated_settings
from crope.report.statements import can_say, cannot_say
from tests.report.conftest import make_cells, make_study, read_source


@pytest.fixture
def findings(runs_dir):
    def findings(scale="quick"):
        return find(read_source(runs_dir, scale=scale), make_cells(), unavailable={}, margin=0.02)

    return findings


def test_how_small_a_difference_these_seeds_can_tell(write_run, findings) -> None:
    for seed, above in enumerate((0.0, 0.01, 0.02)):  # s = 0.01: half width 4.3027 * 0.01 / sqrt(3) = 0.0248
        write_run("rope", "ptb", seed=seed, final=5.0)
        write_run("crope", "ptb", seed=seed, final=5.0 + above)
    first, second = can_say(findings())
    assert first == "Of 12 verdicts on the paper's claims: 3 supported, 9 cannot tell."
    assert "CRoPE − RoPE is known to within ±0.0248 (Penn Treebank) nats per token" in second
    assert "equal within ±0.02: 0 of 1 rows know it that closely" in second
    for seed, above in enumerate((0.0, 0.001, 0.002)):
        write_run("rope", "wikitext2", seed=seed, final=5.0)
        write_run("crope", "wikitext2", seed=seed, final=5.0 + above)
    assert "±0.0025 (Wikitext-2) to ±0.0248 (Penn Treebank)" in can_say(findings())[1]
    assert "1 of 2 rows" in can_say(findings())[1]


def test_what_cannot_be_said(write_run, runs_dir, findings) -> None:
    assert any("no complete run" in text for text in cannot_say(findings()))
    write_run("rope", "ptb")
    texts = " ".join(cannot_say(findings()))
    assert "fewer than 3 seeds" in texts and "20 cells have no complete run" in texts
    assert "At the quick scale" in texts and "At the" not in " ".join(cannot_say(findings("paper")))
    for path in runs_dir.iterdir():
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    make_study(runs_dir, seeds=range(3))
    texts = " ".join(cannot_say(findings()))
    assert "fewer than" not in texts and "no complete run" not in texts


def test_stated_settings_are_the_papers_beside_the_runs_own(write_run, read_sound, cells) -> None:
    write_run("rope", "ptb")
    write_run("rope", "pg19", "b2_l512_d64")
    results = resolve_cells(read_sound(), cells, unavailable={})
    found = {one.key: one for one in stated_settings(results)}
    assert found.keys() == {*paper.SETTINGS, "ffn_ratio"}
    rows = list(paper.ROWS)
    for key, stated in paper.SETTINGS.items():
        assert found[key].section == f"Sec. {stated.section}"
        assert len(found[key].values) == len(rows)
    width = [(value.stated, value.here, value.differs) for value in found["model.d_model"].values]
    assert width == [("128", "128", False), ("128", "", False), ("128", "", False), ("64", "64", False)]
    steps = [(value.stated, value.here, value.differs) for value in found["train.max_steps"].values]
    assert steps == [("10,000", "100", True), ("10,000", "", False), ("10,000", "", False), ("10,000", "100", True)]
    assert [value.stated for value in found["train.lr_gamma"].values] == ["0.8", "0.9", "0.9", "0.9"]


def test_every_other_scientific_key_is_named_as_open(build, whole_study, no_pictures) -> None:
    """Of those that the fixtures' configurations have; every key of the schema is stated, varied, a model's or open."""
    text = (build() / "index.html").read_text("utf-8")
    section = text.partition("What the paper leaves open")[2]
    assert re.findall(r"<td><code>([\w.]+)</code>", section) == [
        "model.tied_head",
        "tokenizer.name",
        "tokenizer.vocab_size",
    ]
    assert config.keys()["model.tied_head"].metadata["text"] in section


def test_open_settings_of_real_records_leave_no_key_out() -> None:
    from crope.report.sources import load_published, resolve

    source = load_published("quick")
    results = resolve(source, unavailable={})
    known = {one.key for one in (*stated_settings(results), *open_settings(results))} - {"ffn_ratio"}
    models = {"model.position", "model.projection", "model.attention"}
    schema = config.keys()
    wanted = {key for key in schema if key.partition(".")[0] in config.SCIENTIFIC}
    assert wanted - known == {*models, "seed", "data.corpus", "train.precision"}


class Section:
    """What `make theory`'s part of the report gives: a figure with a table, and a table alone."""

    class Item:
        def __init__(self, name: str, table, svg: bytes) -> None:
            self.name, self.title, self.caption, self.table, self.svg = name, f"<{name}>", "words", table, svg

        def render(self, file_format: str, theme=None) -> bytes:
            return self.svg and self.svg + f" {file_format} {theme.name if theme else 'light'}".encode()

    @classmethod
    def build_theory_section(cls, folder):
        return [cls.Item("decay", ([], []), b"<svg/>"), cls.Item("errata", (["a", "b"], [["1", "<2>"]]), b"")]


def test_the_theory_section_stands_where_it_was_made(build, no_pictures, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(theory, "build_theory_section", Section.build_theory_section)
    out_dir = build(theory=tmp_path)
    text = (out_dir / "index.html").read_text("utf-8")
    assert '<h2 id="theory">' in text and "&lt;decay&gt;" in text and '<td class="">&lt;2&gt;</td>' in text
    assert (out_dir / "theory-decay.svg").read_bytes() == b"<svg/> svg light"
    assert (out_dir / "theory-decay.png").exists() and not (out_dir / "theory-errata.svg").exists()
    assert text.index('id="theory"') < text.index('id="protocol"')


def test_without_its_data_there_is_no_theory_section(build, no_pictures, tmp_path) -> None:
    (tmp_path / "theory").mkdir()
    assert 'id="theory"' not in (build(theory=tmp_path / "theory") / "index.html").read_text("utf-8")
