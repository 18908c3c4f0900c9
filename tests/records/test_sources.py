"""Digests of the code: what counts as a change since a run."""

import pytest

from crope.records import sources

BEFORE = """'Position schemes.'
WIDTH = 32

def bias(distance):
    return -distance / WIDTH

@dataclass
class Train:
    lr: float = 0.1

    def rate(self):
        return self.lr

POSITIONS = {"none": None, "window": bias}
"""


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("WIDTH = 32", "WIDTH = 4", True),
        ("-distance", "distance", True),
        ('"window": bias', '"window": None', True),
        ("    return -", '    """Falls."""\n    # a line\n    return -', False),
        ("/ WIDTH", "/  (WIDTH)", False),
        ("= 0.1", "= 0.2", False),
        ("self.lr", "self.lr / 2", True),
        ("POSITIONS", "def other():\n    pass\n\nPOSITIONS", False),
        ('"window"', '"other": None, "window"', False),
    ],
)
def test_only_what_is_gone_has_changed(old, new, changed, monkeypatch):
    """Not comments, docstrings, format, a field of a dataclass or what was added."""
    assert BEFORE.count(old) == 1
    now = {"a.py": sources.digest_file(BEFORE.replace(old, new))}
    monkeypatch.setattr(sources, "code_digests", lambda: now)
    note = sources.code_note({"code": {"a.py": sources.digest_file(BEFORE)}})
    assert bool(note) == changed
    assert ("a.py changed since" in note) == changed


def test_every_version_of_python_has_the_same_digests():
    """3.11 writes `f"{a['b']}"`, 3.12 `f'{a['b']}'`: the latter's SHA-256 begins so."""
    assert sources.digest_file("'Doc.'\nf\"{a['b']}\"") == "4636c4"


def test_the_files_of_model_loop_and_batches_count():
    counted = sources.code_digests()
    assert {"crope/model/positions.py", "crope/train/loop.py", "crope/seeding.py"} < set(counted)
    assert "crope/data/batches.py" in counted and "crope/data/corpora.py" not in counted
