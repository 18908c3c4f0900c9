"""README.md and docs/results.md are what the published records give."""

from crope.config import PUBLISHED
from crope.report import content, docs
from crope.report.frame import load_runs


def test_the_committed_texts_are_those_of_the_records():
    report = content.collect(load_runs(results_dir=PUBLISHED / "none"))
    for file, text in docs.render_docs(report).items():
        committed = file.read_text(encoding="utf-8").splitlines(keepends=True)
        assert committed == text.splitlines(keepends=True), f"{file.name}: run `make readme`"
