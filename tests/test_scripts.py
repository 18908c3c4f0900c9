"""The scripts as commands: output, one line per error, exit status; one subprocess test per script
at most.
"""

import csv
import json
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import report as report_script
import reproduce as reproduce_script
import tools
import train as train_script
from safetensors import safe_open

from crope.config import TokenizerConfig
from crope.data.tokens import TokenSet
from crope.errors import ConfigError, DataUnavailable, UserError
from crope.report import page as build
from crope.report import publish
from crope.runs.compose import load_run
from crope.runs.record import PUBLISHED, read_record
from crope.train import golden
from tests.conftest import TOY_OVERRIDES, make_toy_tokens, printed_by, raises_one_line, run_script
from tests.report.records import write_run
from tests.toy_runs import toy_corpus, train_toy


def train(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[str, str, str]:
    """stdout, stderr and the error line of train.py in this process; no error: ''."""
    monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
    monkeypatch.setattr(train_script, "failures", [])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    error = ""
    try:
        train_script.main()
    except UserError as raised:  # main_errors() prints it
        error = f"error: {raised}"
    except SystemExit as raised:
        error = str(raised.code)
    return *capsys.readouterr(), error


@pytest.mark.parametrize(
    ("argument", "word"),
    [
        ("train.seq_len=9999999", "train.seq_len"),
        ("+foo=1", "foo"),
        ("crope", "key=value"),
        ("model=rope,crope", "-m"),
        ("hydra/launcher=ray", "ray"),
        ("model=glob(*x)", "glob"),
        ("--nosuch", "--nosuch"),
        ("--cfg=nosuch", "--cfg"),
    ],
)
def test_every_mistake_is_one_line(
    argument: str, word: str, toy_data, monkeypatch, capsys, tmp_path: Path
) -> None:
    settings = [text for text in TOY_OVERRIDES if text.split("=")[0] != argument.split("=")[0]]
    out, err, error = train(
        monkeypatch, capsys, *settings, "scale=smoke", argument, f"results_dir={tmp_path}"
    )
    assert (out, err) == ("", "")
    assert error.startswith("error: ") and word in error and "\n" not in error
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("script", "arguments", "word"),
    [
        (tools, "status --seeds -1", "seeds"),
        (tools, "status --results-dir=", "results-dir"),
        (tools, f"status --results-dir={__file__}", "a file"),
        (tools, "theory --seeds 0", "seeds"),
        (tools, "explain --runs nosuch", "nosuch"),
        (tools, "prepare ../data/ptb", "../data/ptb"),
        (tools, "prepare pbt", "did you mean ptb"),
        (report_script, "--runs nosuch", "nosuch"),
        (reproduce_script, "--seeds 0", "seeds"),
        (reproduce_script, "--seed 3", "--seed"),
    ],
)
def test_arguments_that_the_other_scripts_refuse(
    script: ModuleType, arguments: str, word: str, monkeypatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [f"{script.__name__}.py", *arguments.split()])
    with raises_one_line(ConfigError, word):
        script.main()
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("toy_data")
def test_a_multirun_skips_what_is_complete_and_lists_what_failed(
    monkeypatch, capsys, tmp_path: Path
) -> None:
    results = f"results_dir={tmp_path}/räs, a=b ~[1]#"
    command = ["-m", *TOY_OVERRIDES, results, "model=rope,crope"]
    out, err, error = train(monkeypatch, capsys, *command)
    assert (err, error, out.count("nats per token")) == ("", "", 2)
    out, err, error = train(monkeypatch, capsys, *command, "train.lr=0.001,1e30,nan")
    assert out.count("already complete") == 2
    assert err.startswith("4 runs failed") and len(error.splitlines()) == 4
    assert error.count("not finite") == 2 and error.count("train.lr=nan") == 2
    assert [folder.name for folder in tmp_path.iterdir()] == ["räs, a=b ~[1]#"]


def test_a_study_file_that_hydra_would_ignore_is_refused_at_every_scale(
    monkeypatch, capsys, own_conf: Path
) -> None:
    """Hydra would train the defaults once."""
    text = (own_conf / "study/pilot.yaml").read_text().replace("# @package _global_", "")
    (own_conf / "study/ignored.yaml").write_text(text)
    error = train(monkeypatch, capsys, "-m", "study=ignored", "scale=smoke")[2]
    assert "conf/study/ignored.yaml" in error and "package" in error


def test_cfg_job_prints_the_resolved_configuration_and_the_run_id(monkeypatch, capsys) -> None:
    out, _, error = train(
        monkeypatch, capsys, "--cfg", "job", "model=crope", "scale=smoke", "train.precision=fp32"
    )
    assert error == "" and out.startswith("# crope-ptb-base-s0-")
    assert "d_model: 128" in out and "${" not in out
    assert train(monkeypatch, capsys, "--cfg=job", "scale=smoke")[0].startswith("# crope-ptb-")
    assert "leave -m out" in train(monkeypatch, capsys, "-m", "--cfg", "job", "seed=0,1")[2]


def test_train_as_a_command(tmp_path: Path) -> None:
    """Exit status 1, one line on stderr, nothing on stdout; and few modules are imported."""
    done = run_script("train.py", "train.lr=nan", f"results_dir={tmp_path}")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
    modules = "import sys; sys.path.insert(0, 'scripts'); import train; print(*sys.modules)"
    listed = printed_by(modules).split()
    assert len([name for name in listed if name.split(".")[0] == "crope"]) <= 30


def test_reproduce_without_data_and_network(tmp_path: Path) -> None:
    """Table 1 on `tiny`; the paper's rows say missing and why; run again, nothing is trained or
    changed.
    """
    hidden = {
        "CROPE_DATA_DIR": str(tmp_path / "none"),
        "CROPE_CACHE_DIR": str(tmp_path / "cache"),
        "HF_HUB_OFFLINE": "1",
    }
    options = f"--scale=smoke --study=table1 --seeds=1 --results-dir={tmp_path} tracker=none"
    command = options.split()
    done = run_script("reproduce.py", *command, **hidden)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 runs, 3 to train" in done.stdout and "error: ptb" in done.stderr
    with (tmp_path / "report-smoke" / "table1.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {(row["dataset"] == "tiny", row["status"]) for row in rows} == {
        (True, "complete"),
        (False, "missing"),
    }
    assert "HF_HUB_OFFLINE" in (tmp_path / "unavailable.json").read_text()
    before = {path: path.read_bytes() for path in tmp_path.glob("r*/*/*") if path.is_file()}
    assert "3 runs, 0 to train" in run_script("reproduce.py", *command, **hidden).stdout
    assert {path: path.read_bytes() for path in before} == before
    records = [read_record(path) for path in (tmp_path / "runs").iterdir()]
    assert {record.summary["seed"] for record in records} == {0}
    assert all(record.config["runtime"]["threads"] >= 1 for record in records)


def call(monkeypatch: pytest.MonkeyPatch, script: ModuleType, *arguments: object) -> Any:
    """What `main` of a script returns, or the status that it exits with."""
    monkeypatch.setattr(sys, "argv", [script.__name__, *map(str, arguments)])
    try:
        return script.main()
    except SystemExit as ended:
        return ended.code


@pytest.fixture
def gpu_check(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """gpu-check with commands that are only noted, of which those with the word `failing` fail; a
    call returns the exit status and the commands.
    """

    def call_it(
        *arguments: str,
        commit: str | None = "a",
        failing: str = "nothing",
        device: str = "NVIDIA H200",
    ) -> tuple[int, list[str]]:
        commands: list[str] = []

        def run(command: list[str], log: Path, environment: dict[str, str]) -> int:
            commands.append(" ".join(command[1:]))
            return 3 if failing in commands[-1] else 0

        facts = {"commit": commit, "dirty": False, "device_kind": "cpu", "device": device}
        known = dict.fromkeys(("driver", "cuda", "python", "packages"), "?")
        monkeypatch.setattr("crope.runs.provenance.collect", lambda *_: known | facts)
        monkeypatch.setattr(tools, "_run_and_log", run)
        monkeypatch.setattr(
            sys, "argv", ["tools.py", "gpu-check", *arguments, f"--results-dir={tmp_path}"]
        )
        return tools.main(), commands

    return call_it


def test_gpu_check_continues_at_the_part_that_failed(gpu_check) -> None:
    status, commands = gpu_check(failing="--seeds 1")
    assert status == 3 and len(commands) == 3 and "test_cuda" in commands[0]
    status, commands = gpu_check()
    assert status == 0 and len(commands) == 3
    assert "--seeds 1" in commands[0] and "publish nvidia-h200 --scale paper" in commands[2]
    assert gpu_check() == (0, []), "everything has passed"
    assert len(gpu_check("bench")[1]) == 1, "a part that is named runs again"
    assert len(gpu_check(commit="b")[1]) == 5, "another commit"
    assert len(gpu_check(commit="b", device="a CPU")[1]) == 5, "another device"
    assert gpu_check(commit="b") == (0, []), "here everything has passed"
    assert len(gpu_check("--scale=smoke", commit="b")[1]) == 4, "a rehearsal; the tests have passed"
    assert len(gpu_check(commit="b")[1]) == 4, "which is no check of the paper's scale"


def test_gpu_check_refuses_what_would_be_in_vain(gpu_check) -> None:
    with pytest.raises(ConfigError, match="nosuch"):
        gpu_check("nosuch")
    with pytest.raises(UserError, match=r"seed0.*commit"):
        gpu_check(commit=None)
    assert len(gpu_check("tests", "bench", commit=None)[1]) == 2


def test_gpu_check_takes_no_runs_of_another_device(gpu_check, tmp_path: Path) -> None:
    path = write_run(tmp_path / "runs", scale="paper")
    with pytest.raises(UserError, match=path.name):
        gpu_check("seeds")
    assert gpu_check("seeds", device="a CPU")[0] == 0
    assert gpu_check("seeds", "--scale=quick")[0] == 0


def test_gpu_check_logs_a_command_and_stops_it_once(tmp_path: Path) -> None:
    """The command saves, and prints, after the signal; both are seen to the end."""
    code = "import os, signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit('saved')); "
    code += "print('started', flush=True); time.sleep(0.1); os.kill(os.getppid(), signal.SIGINT); time.sleep(60)"
    log = tmp_path / "log"
    with pytest.raises(KeyboardInterrupt):
        tools._run_and_log([sys.executable, "-c", code], log, dict(os.environ))
    assert log.read_text().split() == ["started", "saved"]
    command = [sys.executable, "-c", "print('out'); import sys; sys.exit('err')"]
    assert tools._run_and_log(command, log, dict(os.environ)) == 1
    assert sorted(log.read_text().split()) == ["err", "out"]


def test_report_takes_the_named_folders_and_scale(monkeypatch, capsys, tmp_path: Path) -> None:
    """The only run of the scale in `other` is that of seed 2."""
    results, other = tmp_path / "results", tmp_path / "other"
    write_run(results / "runs", scale="smoke", seed=0)
    write_run(other, scale="quick", seed=1)
    write_run(other, scale="smoke", seed=2)
    invalid = write_run(other, seed=9)
    (invalid / "metrics.jsonl").write_text("{}\n")
    monkeypatch.setitem(build.build_report.__kwdefaults__, "published", tmp_path / "published")
    options = [f"--results-dir={results}", "--scale=smoke", f"--runs={other}", f"--out={other}/out"]
    assert call(monkeypatch, report_script, *options) == 1
    assert invalid.name in capsys.readouterr().err
    with (other / "out" / "runs.csv").open() as file:
        complete = [row["seed"] for row in csv.DictReader(file) if row["status"] == "complete"]
    assert complete == ["2"]
    seen = []
    monkeypatch.setattr(build, "build_report", lambda **options: seen.append(options) or [])
    assert call(monkeypatch, report_script) == 0
    assert seen[0]["scale"] is None and seen[0]["folders"] == []
    assert seen[0]["out_dir"] is None


def test_publish_copies_the_runs_of_the_scale(monkeypatch, capsys, tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "rope")
    path = write_run(tmp_path / "runs", "rope", seed=1, scale="smoke")
    monkeypatch.setitem(publish.publish.__kwdefaults__, "published", tmp_path / "published")
    options = ["mine", "--scale=smoke", f"--results-dir={tmp_path}"]
    assert call(monkeypatch, tools, "publish", *options) == 0
    assert [*(tmp_path / "published" / "mine").glob("*/")] == [
        tmp_path / "published/mine" / path.name
    ]
    assert capsys.readouterr().out.startswith("1 runs published for mine")


def test_status_of_the_named_studies_seeds_and_scale(monkeypatch, capsys, tmp_path: Path) -> None:
    """Seed 1 of one run is there: `--seeds 1` is seed 0, `--seeds 2` are 0 and 1."""
    run = load_run(["model=rope", "data=ptb", "seed=1", "scale=quick", "train.precision=fp32"])
    source, *_ = PUBLISHED.glob(f"*/{run.run_id}")
    shutil.copytree(source, tmp_path / "runs" / source.name)
    monkeypatch.setattr("crope.runs.study.TABLES", ("base",))
    for options, expected in (
        (["--study=length", "--scale=smoke"], "length, smoke: 35 runs: 35 missing"),
        (["--study=base", "--seeds=1"], "base, quick: 4 runs: 4 missing"),
        (["--study=base", "--seeds=2"], "base, quick: 8 runs: 1 done, 7 missing"),
        ([], "base, quick: 40 runs: 1 done, 39 missing"),
    ):
        assert call(monkeypatch, tools, "status", f"--results-dir={tmp_path}", *options) == 0
        assert capsys.readouterr().out.startswith(f"{expected}\n")


def test_prepare_makes_the_named_corpora_of_the_scale(monkeypatch, capsys, tmp_path: Path) -> None:
    asked = []

    def load(corpus: str, tokenizer: TokenizerConfig, *, data_dir: Path) -> TokenSet:
        asked.append((corpus, tokenizer.vocab_size, data_dir))
        if corpus == "tiny":
            raise DataUnavailable("tiny: not here")
        return make_toy_tokens(tmp_path)

    monkeypatch.setattr("crope.data.tokens.load_tokens", load)
    monkeypatch.setattr("crope.train.device.default_scale", lambda: "quick")
    monkeypatch.setenv("CROPE_DATA_DIR", "elsewhere")
    options = ["tiny", "ptb", "--scale=paper", f"--data-dir={tmp_path}"]
    assert call(monkeypatch, tools, "prepare", *options) == 1
    assert asked == [("tiny", 50257, tmp_path), ("ptb", 50257, tmp_path)]
    out, err = capsys.readouterr()
    assert out.startswith("ptb: train 900 tokens, validation 300") and "tiny: not here" in err
    asked.clear()
    assert call(monkeypatch, tools, "prepare") == 0
    assert asked == [(name, 4096, Path("elsewhere")) for name in ("pg19", "wikitext2", "ptb")]


HERE = Path("here")


@pytest.mark.parametrize(
    ("options", "function", "passed", "options_passed"),
    [
        (
            "theory --seeds=2 --results-dir=here",
            "theory.report.make_theory",
            [HERE / "theory"],
            {"seeds": 2},
        ),
        (
            "theory --part=recall --results-dir=here",
            "theory.report.make_recall",
            [HERE / "theory"],
            {},
        ),
        (
            "release --scale=smoke --seed=2 --results-dir=here",
            "interop.release.release",
            [HERE],
            {"scale": "smoke", "seed": 2},
        ),
        ("release", "interop.release.release", [Path("results")], {"scale": "quick", "seed": 0}),
        (
            "explain a/cell --scale=smoke --runs=. --results-dir=here",
            "report.explain.explain",
            ["a/cell"],
            {"results_dir": HERE, "scale": "smoke", "folders": [Path()]},
        ),
    ],
)
def test_tools_pass_their_options_on(
    options: str, function: str, passed: list, options_passed: dict, monkeypatch, capsys
) -> None:
    """What they do is tested with their modules."""
    seen = []
    monkeypatch.setattr(f"crope.{function}", lambda *a, **k: seen.append(([*a], k)) or "result")
    monkeypatch.setattr("crope.train.device.default_scale", lambda: "quick")
    assert call(monkeypatch, tools, *options.split()) == 0
    assert seen == [(passed, options_passed)]
    assert capsys.readouterr().out == ("" if "theory" in function else "result\n")


def test_readme_and_golden_are_remade(monkeypatch, capsys) -> None:
    remade = []
    monkeypatch.setattr(publish, "update_readme", lambda: remade.append("readme"))
    monkeypatch.setattr(golden, "remake", lambda: ["rope", "crope"] * (not remade))
    for command in ("golden", "readme", "golden"):
        assert call(monkeypatch, tools, command) == 0
    assert remade == ["readme"]
    assert capsys.readouterr().out == "changed or new: rope, crope\nchanged or new: none\n"


def test_tools_find_runs_and_fail_in_one_line_per_run(monkeypatch, capsys, tmp_path: Path) -> None:
    sent = []
    monkeypatch.setattr(
        "crope.runs.tracking.upload", lambda record, results_dir: sent.append(record.path.name)
    )
    published = next(PUBLISHED.glob("*/crope-ptb-base-s0-*"))
    options = ["nosuch", published, "--results-dir", tmp_path]
    assert call(monkeypatch, tools, "upload", *options) == 1
    assert sent == [published.name]
    assert capsys.readouterr().err.startswith("error: run 'nosuch'")


def test_tools_measure_convert_and_export_a_run(monkeypatch, capsys, tmp_path: Path) -> None:
    with toy_corpus(tmp_path / "tokens"):
        record = train_toy(tmp_path, "model=rope")
        name, out = record.path.name[:12], tmp_path / "out.safetensors"
        for command, *options in (
            ["extrapolate", name, "--factors", 4, 1, "--tokens", 130],
            ["convert", name, "--steps=1", "--lr=0.02"],
            ["export", name, out, "--converted", "--dense"],
            ["export", name, "--format=transformers", "--converted"],
            ["generate", name, "--prompt=ab", "--tokens=3", "--top-k=1"],
        ):
            assert call(monkeypatch, tools, command, *options, f"--results-dir={tmp_path}") == 0
    measured, converted = (
        json.loads((record.path / f"{name}.json").read_text())
        for name in ("extrapolation", "conversion")
    )
    losses = [row["loss_nats"] for row in measured["lengths"]]
    assert (measured["factors"], measured["max_tokens"]) == ([1, 4], 130)
    assert (converted["steps"], converted["lr"]) == (1, 0.02)
    with safe_open(out, "pt") as file:
        assert json.loads(file.metadata()["model"])["projection"] == "real"
    printed = capsys.readouterr().out.splitlines()
    assert f": L=16 {losses[0]:.4f}; L=64 {losses[1]:.4f} " in printed[0]
    loss = f"{record.summary['val_full']['final_nats']:.4f}"
    tuned = f"{converted['tuned_loss_nats']['rope']:.4f}"
    assert f": trained {loss}; rope {loss} -> {tuned}; best " in printed[1]
    assert printed[2] == str(out)
    assert printed[3] == str(tmp_path / "export" / f"{record.path.name}-converted")
    card = Path(printed[3], "README.md").read_text(encoding="utf-8")
    assert f"{converted['tuned_loss_nats']['best']:.4f} nats" in card and "1 steps" in card
    assert "training loss" not in card
    assert printed[4].startswith("ab")
