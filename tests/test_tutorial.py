"""docs/tutorial.md typed to the letter in a copy of the repository: minutes, so only on demand."""

import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from crope.config import ROOT

TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
SECTIONS = re.split(r"^## ", TUTORIAL, flags=re.MULTILINE)[1:]


def blocks(section):
    """The fenced blocks of a section, without their indentation and fences."""
    fenced = re.findall(r"^( *)```\w+\n(.*?)^ *```", section, re.MULTILINE | re.DOTALL)
    return [re.sub(f"^{indent}", "", text, flags=re.MULTILINE) for indent, text in fenced]


def commands(section):
    return re.findall(r"^    ((?:python|make) .*)$", section, re.MULTILINE)


@pytest.mark.on_demand
def test_the_tutorial_to_the_letter(tmp_path):
    """In a copy of the repository, whose scripts import its own package."""
    ignored = shutil.ignore_patterns(".*", "__pycache__", "results")
    copy = shutil.copytree(ROOT, tmp_path / "copy", ignore=ignored)
    (copy / "results").mkdir()
    (copy / ".venv").symlink_to(sys.prefix)
    environment = os.environ | {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    environment["PATH"] = f"{sys.prefix}/bin:{os.environ['PATH']}"
    environment["CROPE_DATA_DIR"] = f"{copy}/text"
    environment["CROPE_CACHE_DIR"] = f"{copy}/cache"

    def run(command):
        command = command.replace("make ", "make -o .venv/.stamp ")  # no installation
        options = {"shell": True, "capture_output": True, "text": True}
        done = subprocess.run(command, cwd=copy, env=environment, **options)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def insert(file, before, text):
        code = (copy / file).read_text()
        assert code.count(before) == 1, before
        (copy / file).write_text(code.replace(before, text + before))

    first, compare, study, dataset, scheme, export = SECTIONS
    for command in commands(first):
        run(command)
    (trained,) = copy.glob("results/runs/crope-tiny-base-s0-*")

    for command in commands(compare):
        run(command)
    assert (copy / "results/compare.png").exists()
    for code in blocks(compare):
        run(f"python -c {shlex.quote(code)}")

    heads, contrast = blocks(study)
    (copy / "conf/study/heads.yaml").write_text(heads)
    with (copy / "conf/contrasts.yaml").open("a") as contrasts:
        contrasts.write(contrast)
    for command in commands(study):
        run(command)
    assert "heads/crope - rope" in (copy / "results/report-smoke/differences.csv").read_text()

    _, letters = blocks(dataset)  # the hub needs a network
    (copy / "conf/data/letters.yaml").write_text(letters)
    (copy / "text/letters").mkdir(parents=True)
    train = "".join(path.read_text() for path in sorted(ROOT.glob("crope/**/*.py")))
    validation = (ROOT / "docs/results.md").read_text()
    (copy / "text/letters/train.txt").write_text(train)
    (copy / "text/letters/valid.txt").write_text(validation)
    run(commands(dataset)[1])

    code, model, oracle, test, shared = blocks(scheme)
    (entry,) = re.findall(r'`("gaussian".*?)`', scheme)
    insert("crope/model/positions.py", "POSITIONS: ", f"{code}\n\n")
    insert("crope/model/positions.py", '    "alibi": lambda', f"    {entry},\n")
    (copy / "conf/model/gaussian.yaml").write_text(model)
    insert("tests/model/oracles.py", '    "alibi": Oracle', f"    {oracle.strip()}\n")
    insert("crope/model/projections.py", "# Each builds Q, K and V", f"{shared}\n\n")
    insert("crope/model/projections.py", '    "real": layers', '    "shared_qk": shared_qk,\n')
    (copy / "conf/model/shared.yaml").write_text(model.replace("real", "shared_qk"))
    tests = copy / "tests/model/test_positions.py"
    tests.write_text(f"from crope.model.positions import GaussianBias\n{tests.read_text()}\n{test}")
    for command in commands(scheme):
        run(command)

    generate, write = commands(export)
    assert run(generate.replace("RUN", trained.name)).startswith("The ")
    assert run(write.replace("RUN", trained.name)).strip() == f"results/export/{trained.name}"
