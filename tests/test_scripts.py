"""The scripts as commands: what they refuse, what they pass on, output and exit status."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import cli
import pytest
import report as report_script
import reproduce as reproduce_script
import tools
import train as train_script

from crope.config import ROOT
from crope.errors import ConfigError, DataUnavailable, StorageError, UserError
from tests.conftest import TOY_OVERRIDES, printed_by, raises_one_line, run_script
from tests.toy_runs import toy_corpus, train_toy


@pytest.fixture
def train(monkeypatch, capsys):
    """train.py in this process: its output, stderr and error line ('' without an error)."""
    monkeypatch.setattr(train_script, "failures", [])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
        train_script.failures.clear()
        error = ""
        try:
            train_script.main()
        except UserError as raised:  # main_errors() prints it
            error = f"error: {raised}"
        except SystemExit as raised:
            error = str(raised.code)
        return *capsys.readouterr(), error

    return call


@pytest.fixture
def call(monkeypatch):
    """What `main` of a script returns, or the status that it exits with."""

    def call_main(script, words, *more):
        arguments = [*words.split(), *map(str, more)]
        monkeypatch.setattr(sys, "argv", [f"{script.__name__}.py", *arguments])
        try:
            return script.main()
        except SystemExit as ended:
            return ended.code

    return call_main


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ("crope", "key=value"),
        ("hydra/launcher=ray", "pip install"),
        ("train.lr=1 +train.lr=2", "train.lr is given twice"),
        ("--nosuch", "--nosuch"),
        ("--config-name scale/quick", "--config-name"),
        ("-cp elsewhere", "--config-path"),
        ("--experimental-rerun file", "--experimental-rerun"),
        ("--run study=base", "--run"),
        ("--resolve", "--cfg"),
        ("-m --cfg job seed=0,1", "leave -m out"),
    ],
)
def test_a_command_that_would_do_something_else_is_refused(arguments, word, train, tmp_path):
    command = ["data=tiny", "scale=smoke", f"results_dir={tmp_path / 'results'}"]
    out, err, error = train(*command, *arguments.split())
    assert out == ""
    assert err == ""
    assert len(error.splitlines()) == 1
    assert error.startswith("error: ")
    assert word in error
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("script", "arguments", "word"),
    [
        (tools, "status --seeds -1", "seeds"),
        (tools, f"status --results-dir={__file__}", "a file"),
        (tools, "explain --runs nosuch", "nosuch"),
        (tools, "prepare pbt", "did you mean ptb"),
        (reproduce_script, "--seed 3", "--seed"),
        (reproduce_script, "tracker=none tracker=wandb", "twice"),
    ],
)
def test_arguments_that_the_other_scripts_refuse(
    script, arguments, word, call, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with raises_one_line(ConfigError, word):
        call(script, arguments)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("toy_data")
def test_a_multirun_skips_what_is_complete_and_lists_what_failed(train, tmp_path):
    """Overrides may stand on both sides of -m."""
    command = [*TOY_OVERRIDES, "-m", f"results_dir={tmp_path}/räs, a=b ~[1]#", "model=rope,crope"]
    out, err, error = train(*command)
    assert err == ""
    assert error == ""
    assert out.count("nats per token") == 2
    out, err, error = train(*command, "train.lr=0.001,1e30,nan")
    assert out.count("already complete") == 2
    assert err.startswith("4 runs failed")
    assert len(error.splitlines()) == 4
    assert error.count("not finite") == 2
    assert error.count("train.lr=nan") == 2
    assert [folder.name for folder in tmp_path.iterdir()] == ["räs, a=b ~[1]#"]


def test_a_disk_that_fails_ends_a_multirun_at_once(train, monkeypatch, tmp_path):
    """The next run would fail as well, after minutes."""
    tried = []

    def execute(run):
        tried.append(run.config.seed)
        raise StorageError("a/file: No space left on device")

    monkeypatch.setattr("crope.runs.run.execute", execute)
    error = train(*TOY_OVERRIDES, f"results_dir={tmp_path}", "-m", "seed=3,4")[2]
    assert tried == [3]
    assert error == "error: a/file: No space left on device"


def test_a_run_that_was_stopped_ends_with_the_status_of_its_signal(train, monkeypatch, tmp_path):
    outcome = SimpleNamespace(signal=15, text="stopped", status="stopped")
    monkeypatch.setattr("crope.runs.run.execute", lambda run: outcome)
    settings = ("data=tiny", "scale=smoke", "train.precision=fp32", f"results_dir={tmp_path}")
    assert train(*settings) == ("", "stopped\n", "143")


@pytest.mark.parametrize(
    ("words", "scale"),
    [
        ("study=paper_row", "paper"),  # the study's own
        ("study=base", "medium"),
        ("study=paper_row scale=smoke", "smoke"),
    ],
)
def test_a_study_runs_at_its_own_scale_else_that_of_the_machine(words, scale, train, monkeypatch):
    given = []
    monkeypatch.setattr("crope.train.device.default_scale", lambda: "medium")
    monkeypatch.setattr(train_script, "train", lambda: given.extend(sys.argv))
    train("-m", *words.split())
    assert f"scale={scale}" in given


def test_a_study_file_that_hydra_would_ignore_is_refused_at_every_scale(train, own_conf):
    """Hydra would train the defaults once."""
    text = (own_conf / "study/pilot.yaml").read_text().replace("# @package _global_", "")
    (own_conf / "study/ignored.yaml").write_text(text)
    error = train("-m", "study=ignored", "scale=smoke")[2]
    assert "conf/study/ignored.yaml" in error
    assert "package" in error


@pytest.mark.parametrize("flag", [["--cfg", "job"], ["--cfg=job"], ["-c", "job", "--resolve"]])
def test_cfg_job_prints_the_resolved_configuration_and_the_run_id(flag, train):
    out, _, error = train(*flag, "model=crope", "scale=smoke", "train.precision=fp32")
    assert error == ""
    assert out.startswith("# crope-ptb-base-s0-")
    assert "d_model: 128" in out
    assert "${" not in out


def test_a_mistake_of_a_command_is_one_line_and_exit_status_1(tmp_path):
    done = run_script("train.py", "train.lr=nan", "scale=smoke", f"results_dir={tmp_path}")
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1


def test_reproduce_without_data_and_network(tmp_path):
    """Table 1 on `tiny`, whose rows are complete; run again, nothing is trained or changed."""
    hidden = {"CROPE_DATA_DIR": str(tmp_path / "none"), "HF_HUB_OFFLINE": "1"}
    hidden["CROPE_CACHE_DIR"] = str(tmp_path / "cache")
    options = f"--scale=smoke --study=table1 --seeds=1 --results-dir={tmp_path} tracker=none"
    done = run_script("reproduce.py", *options.split(), **hidden)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 runs, 3 to train" in done.stdout
    assert "error: ptb" in done.stderr
    assert "HF_HUB_OFFLINE" in (tmp_path / "unavailable.json").read_text()
    before = {path: path.read_bytes() for path in tmp_path.glob("r*/*/*.*")}
    assert len(before) > 3
    done = run_script("reproduce.py", *options.split(), **hidden)
    assert "3 runs, 0 to train" in done.stdout
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("train", "train.steps=3"),
        ("tools", "status --study=base --scale=smoke"),
        ("tools", "explain table1/ptb/rope"),
    ],
)
def test_an_answer_does_not_wait_for_torch(script, arguments):
    run = f"sys.argv = ['{script}.py', *'{arguments}'.split()]; import {script}"
    code = f"import sys; sys.path.insert(0, 'scripts'); {run}\ntry: {script}.main()\nexcept"
    code += " Exception as error: print(error)\nfinally: print('torch' in sys.modules)"
    assert printed_by(code).endswith("False\n")


@pytest.mark.parametrize("script", ["train", "reproduce", "report", "tools"])
def test_a_script_starts_without_docstrings_and_without_its_folder(script):
    command = [sys.executable, "-OO", "-I", f"scripts/{script}.py", "--help"]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == 0


def test_results_outside_the_checkout_are_told(monkeypatch, capsys, tmp_path):
    """Once, and where the folder was not given in full."""
    cli.say_where("results")
    cli.say_where.cache_clear()
    monkeypatch.chdir(tmp_path)
    for folder in ("results", "results", str(tmp_path)):
        cli.say_where(folder)
    assert capsys.readouterr().err == f"results are in {tmp_path}/results\n"


def test_the_variables_of_make_stand_for_options(monkeypatch):
    values = {
        "STUDY": "a b",
        "RUNS": "'c d'",
        "SCALE": "quick",
        "SEEDS": "2; x",
        "CELL": "e f",
    }
    for name, value in (values | {"ARGS": "-f 'g h'"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["tools.py", "status", "--from-make", "tracker=none"])
    options = ["--study=a", "--study=b", "--runs=c d", "--scale=quick", "--seeds=2; x"]
    assert cli.arguments() == ["status", *options, "e f", "-f", "g h", "tracker=none"]
    monkeypatch.setattr(sys, "argv", ["tools.py", "status"])
    assert cli.arguments() == ["status"], "variables of another's environment"


def test_a_variable_of_make_with_an_open_quote_is_an_error(monkeypatch):
    monkeypatch.setenv("ARGS", "'a")
    monkeypatch.setattr(sys, "argv", ["report.py", "--from-make"])
    with raises_one_line(ConfigError, "ARGS: No closing quotation"):
        cli.arguments()


HERE = {"results_dir": Path("here")}
SAMPLING = {
    "tokens": 3,
    "temperature": 0.5,
    "top_k": 4,
    "seed": 5,
}


@pytest.mark.parametrize(
    ("words", "function", "passed", "options"),
    [
        (
            "theory --seeds=2 --results-dir=here",
            "theory.report.make_theory",
            [Path("here/theory")],
            {"seeds": 2},
        ),
        (
            "theory --part=recall --results-dir=here",
            "theory.report.make_recall",
            [Path("here/theory")],
            {},
        ),
        (
            "explain a/cell --scale=smoke --runs=. --results-dir=here",
            "report.explain.explain",
            ["a/cell"],
            HERE | {"scale": "smoke", "folders": [Path()]},
        ),
        (
            "plot a b --key train/lr --out c.svg --results-dir=here",
            "report.plot.plot",
            [["a", "b"]],
            HERE | {"key": "train/lr", "out": Path("c.svg")},
        ),
        (
            "publish mine --scale=smoke --results-dir=here",
            "report.publish.publish",
            [Path("here"), "mine"],
            {"scale": "smoke"},
        ),
        (
            "generate a --prompt b --tokens 3 --temperature 0.5 --top-k 4 --seed 5",
            "interop.generate.generate",
            ["a", "b"],
            SAMPLING,
        ),
        (
            "status --study=base --scale=smoke --seeds=2 --results-dir=here",
            "runs.status.study_states",
            [["base"]],
            HERE | {"scale": "smoke", "seeds": 2},
        ),
        (
            "status",
            "runs.status.study_states",
            [("table1", "table2")],
            {"results_dir": Path("results"), "scale": None, "seeds": None},
        ),
    ],
)
def test_tools_pass_their_options_on(words, function, passed, options, call, monkeypatch):
    """What they do is tested with their modules."""
    seen = []
    monkeypatch.setattr("crope.runs.record.find_record", lambda name, results_dir: name)
    monkeypatch.setattr(f"crope.{function}", lambda *a, **k: seen.append(([*a], k)) or {})
    assert call(tools, words) == 0
    assert seen == [(passed, options)]


def test_report_passes_its_options_on(call, monkeypatch):
    seen = {}
    monkeypatch.setattr("crope.report.page.build_report", lambda **given: seen.update(given))
    assert call(report_script, "--results-dir=here --scale=smoke --runs=. --out=there") == 0
    assert seen == HERE | {"scale": "smoke", "folders": [Path()], "out_dir": Path("there")}


def test_report_fails_for_an_invalid_record(call, monkeypatch):
    monkeypatch.setattr("crope.report.page.build_report", lambda **given: ["a record"])
    assert call(report_script, "") == 1


def test_verify_checks_all_records_and_lists_what_is_wrong(call, monkeypatch, capsys):
    seen = []
    verify = SimpleNamespace(verify_records=lambda folders: seen.extend(folders) or ["a: wrong"])
    monkeypatch.setattr("crope.runs.verify", verify, raising=False)
    monkeypatch.setattr("crope.runs.published.set_folders", lambda: [Path("set")])
    assert call(tools, "verify --results-dir=here") == 1
    assert seen == [Path("here/runs"), Path("set")]
    assert capsys.readouterr().err == "error: a: wrong\n"


def test_prepare_makes_the_named_corpora_of_the_scale(call, monkeypatch):
    asked = []

    def prepare(corpora, tokenizer, *, data_dir):
        asked.append((corpora, tokenizer.vocab_size, data_dir))
        return {"tiny": DataUnavailable("not here")} if "tiny" in corpora else {}

    monkeypatch.setattr("crope.runs.prepare.prepare", prepare)
    monkeypatch.setattr("crope.train.device.default_scale", lambda: "quick")
    monkeypatch.setenv("CROPE_DATA_DIR", "elsewhere")
    assert call(tools, "prepare tiny ptb --scale=paper --data-dir=here") == 1
    assert call(tools, "prepare") == 0
    assert asked == [
        (["tiny", "ptb"], 50257, Path("here")),
        (["pg19", "wikitext2", "ptb"], 4096, Path("elsewhere")),
    ]


def test_upload_fails_in_one_line_per_run_and_sends_the_others(call, monkeypatch, capsys):
    sent = []

    def upload(record, *, results_dir):
        if record.path.name == "nosuch":
            raise UserError("run 'nosuch': no such run")
        sent.append(record.path.name)

    record = SimpleNamespace
    monkeypatch.setattr("crope.runs.record.find_record", lambda name, **_: record(path=Path(name)))
    monkeypatch.setattr("crope.runs.tracking.upload", upload)
    assert call(tools, "upload nosuch a-run") == 1
    assert sent == ["a-run"]
    assert capsys.readouterr().err == "error: run 'nosuch': no such run\n"


def test_tools_measure_and_export_a_run(call, capsys, tmp_path):
    with toy_corpus(tmp_path / "tokens"):
        record = train_toy(tmp_path, "model=rope")
        name, where = record.path.name[:12], f"--results-dir={tmp_path}"
        assert call(tools, f"extrapolate {name} --factors 4 1 --tokens 130", where) == 0
        assert call(tools, f"export {name}", where) == 0
    measured, exported = capsys.readouterr().out.splitlines()
    assert measured.startswith(f"{record.path.name}: L=16 ")
    assert "; L=64 " in measured
    assert exported == str(tmp_path / "export" / record.path.name)
    assert Path(exported, "config.json").exists()
