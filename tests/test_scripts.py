"""The scripts as commands: what they refuse, what they pass on, output and exit status."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import cli
import pytest
import report
import reproduce
import tools
import train

from crope.config import ROOT, TokenizerConfig
from crope.errors import ConfigError, StorageError, UserError
from tests.conftest import TOY_OVERRIDES, raises_one_line, run_script
from tests.toy_runs import toy_corpus, train_toy


@pytest.fixture
def call(monkeypatch):
    """What `main` of a script returns, or exits with: a status or the errors of a multirun."""
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # set by train.py

    def call_main(script, words, *more):
        monkeypatch.setattr("train.failures", [])
        monkeypatch.setattr("sys.argv", [f"{script.__name__}.py", *words.split(), *more])
        try:
            return script.main()
        except SystemExit as ended:
            return ended.code

    return call_main


@pytest.mark.parametrize(
    ("script", "arguments", "word"),
    [
        (train, "crope", "key=value"),
        (train, "hydra/launcher=ray", "pip install"),
        (train, "train.lr=1 +train.lr=2", "train.lr is given twice"),
        (train, "--config-name scale/quick", "--config-name"),
        (train, "-cp elsewhere", "--config-path"),
        (train, "--experimental-rerun file", "--experimental-rerun"),
        (train, "--run study=base", "--run"),
        (train, "--resolve", "--cfg"),
        (train, "-m --cfg job seed=0,1", "leave -m out"),
        (tools, "status --seeds -1", "seeds"),
        (tools, f"status --results-dir={__file__}", "a file"),
        (tools, "explain --runs nosuch", "nosuch"),
        (tools, "prepare pbt", "did you mean ptb"),
        (reproduce, "--seed 3", "--seed"),
        (reproduce, "tracker=none tracker=wandb", "twice"),
    ],
)
def test_a_command_that_would_do_something_else_is_refused(
    script, arguments, word, call, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("crope.runs.run.execute", None)  # no run, should it not be refused
    with raises_one_line(ConfigError, word):
        call(script, arguments)
    assert capsys.readouterr() == ("", "")
    assert not list(tmp_path.iterdir())


def test_a_multirun_skips_what_is_complete_and_lists_what_failed(call, toy_data, tmp_path, capsys):
    """Overrides may stand on both sides of -m."""
    command = [*TOY_OVERRIDES, "-m", f"results_dir={tmp_path}/räs, a=b ~[1]#", "model=rope,crope"]
    assert not call(train, "", *command)
    out, err = capsys.readouterr()
    assert err == ""
    assert out.count("nats per token") == 2
    error = call(train, "", *command, "train.lr=0.001,1e30,nan")
    out, err = capsys.readouterr()
    assert out.count("already complete") == 2
    assert err.startswith("4 runs failed")
    assert len(error.splitlines()) == 4
    assert error.count("not finite") == 2
    assert error.count("train.lr=nan") == 2
    assert [folder.name for folder in tmp_path.iterdir()] == ["räs, a=b ~[1]#"]


def test_a_disk_that_fails_ends_a_multirun_at_once(call, monkeypatch, tmp_path):
    """The next run would fail as well, after minutes."""
    execute = mock.Mock(side_effect=StorageError("a/file: No space left on device"))
    monkeypatch.setattr("crope.runs.run.execute", execute)
    error = call(train, f"results_dir={tmp_path} -m seed=3,4", *TOY_OVERRIDES)
    assert execute.call_count == 1
    assert error == "error: a/file: No space left on device"


def test_a_run_that_was_stopped_ends_with_the_status_of_its_signal(call, monkeypatch, capsys):
    outcome = SimpleNamespace(signal=15, text="stopped", status="stopped")
    monkeypatch.setattr("crope.runs.run.execute", lambda run: outcome)
    assert call(train, "data=tiny scale=smoke train.precision=fp32") == 143
    assert capsys.readouterr() == ("", "stopped\n")


@pytest.mark.parametrize(
    ("words", "scale"),
    [
        ("study=paper_row", "paper"),  # the study's own
        ("study=base", "medium"),
        ("study=paper_row scale=smoke", "smoke"),
    ],
)
def test_a_study_runs_at_its_own_scale_else_that_of_the_machine(words, scale, call, monkeypatch):
    given = []
    monkeypatch.setattr("crope.train.device.default_scale", lambda: "medium")
    monkeypatch.setattr("train.train", lambda: given.extend(sys.argv))
    call(train, f"-m {words}")
    assert [word for word in given if word.startswith("scale=")] == [f"scale={scale}"]


def test_a_study_file_that_hydra_would_ignore_is_refused_at_every_scale(call, own_conf):
    """Hydra would train the defaults once."""
    text = (own_conf / "study/pilot.yaml").read_text().replace("# @package _global_", "")
    (own_conf / "study/ignored.yaml").write_text(text)
    with raises_one_line(ConfigError, r"conf/study/ignored\.yaml.*package"):
        call(train, "-m study=ignored scale=smoke")


def test_cfg_job_prints_the_resolved_configuration_and_the_run_id(call, capsys):
    assert not call(train, "-c job --resolve model=crope scale=smoke train.precision=fp32")
    shown = capsys.readouterr().out
    assert shown.startswith("# crope-ptb-base-s0-")
    assert "d_model: 128" in shown
    assert "${" not in shown


def test_a_mistake_of_a_command_is_one_line_and_exit_status_1(tmp_path):
    done = run_script("train.py", "train.lr=nan", "scale=smoke", f"results_dir={tmp_path}")
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1


def test_reproduce_without_data_and_network(tmp_path):
    """Table 1 on `tiny`, whose rows are complete; run again, nothing is trained or changed."""
    hidden = {"CROPE_DATA_DIR": f"{tmp_path}/none", "HF_HUB_OFFLINE": "1"}
    hidden["CROPE_CACHE_DIR"] = f"{tmp_path}/cache"
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
    printed = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT)
    assert printed.endswith(b"False\n")


@pytest.mark.parametrize("script", ["train", "tools"])
def test_a_script_starts_without_docstrings_and_without_its_folder(script):
    subprocess.check_output([sys.executable, "-OO", "-I", f"scripts/{script}.py", "-h"], cwd=ROOT)


def test_results_outside_the_checkout_are_told(monkeypatch, capsys, tmp_path):
    """Once, and where the folder was not given in full."""
    cli.say_where("results")
    cli.say_where.cache_clear()
    monkeypatch.chdir(tmp_path)
    for folder in ("results", "results", str(tmp_path)):
        cli.say_where(folder)
    assert capsys.readouterr().err == f"results are in {tmp_path}/results\n"


@mock.patch.dict(
    "os.environ",
    STUDY="a b",
    RUNS="'c d'",
    SCALE="quick",
    SEEDS="2; x",
    CELL="e f",
    ARGS="-f 'g h'",
)
def test_the_variables_of_make_stand_for_options(monkeypatch):
    monkeypatch.setattr("sys.argv", ["tools.py", "status", "--from-make", "tracker=none"])
    options = ["--study=a", "--study=b", "--runs=c d", "--scale=quick", "--seeds=2; x"]
    assert cli.arguments() == ["status", *options, "e f", "-f", "g h", "tracker=none"]
    sys.argv.remove("--from-make")
    assert cli.arguments() == ["status", "tracker=none"], "variables of another's environment"


def test_a_variable_of_make_with_an_open_quote_is_an_error(monkeypatch):
    monkeypatch.setenv("ARGS", "'a")
    monkeypatch.setattr("sys.argv", ["report.py", "--from-make"])
    with raises_one_line(ConfigError, "ARGS: No closing quotation"):
        cli.arguments()


HERE = Path("here")
RESULTS = Path("results")


@pytest.mark.parametrize(
    ("words", "function", "expected"),
    [
        (
            "theory --results-dir=here",
            "theory.report.make_theory",
            mock.call(HERE / "theory"),
        ),
        (
            "explain a/cell --scale=smoke --runs=. --results-dir=here",
            "report.explain.explain",
            mock.call("a/cell", results_dir=HERE, scale="smoke", folders=[Path()]),
        ),
        (
            "publish mine --scale=smoke --results-dir=here",
            "report.publish.publish",
            mock.call(HERE, "mine", scale="smoke"),
        ),
        (
            "generate a --prompt b --tokens 3 --temperature 0.5 --top-k 4 --seed 5",
            "interop.generate.generate",
            mock.call("a", "b", tokens=3, temperature=0.5, top_k=4, seed=5),
        ),
        (
            "status --study=base --scale=smoke --seeds=2 --results-dir=here",
            "runs.status.study_states",
            mock.call(["base"], scale="smoke", seeds=2, results_dir=HERE),
        ),
        (
            "status",
            "runs.status.study_states",
            mock.call(("table1", "table2"), scale=None, seeds=None, results_dir=RESULTS),
        ),
    ],
)
def test_options_are_passed_on(words, function, expected, call, monkeypatch):
    """What they do is tested with their modules."""
    called = mock.Mock(return_value={})
    monkeypatch.setattr("crope.runs.record.find_record", lambda name, results_dir: name)
    monkeypatch.setattr(f"crope.{function}", called)
    assert call(tools, words) == 0
    assert called.mock_calls == [expected]


def test_report_takes_options_and_fails_for_an_invalid_record(call, monkeypatch):
    build_report = mock.Mock(side_effect=[[], ["a record"]])
    monkeypatch.setattr("crope.report.page.build_report", build_report)
    assert call(report, "--results-dir=here --scale=smoke --runs=. --out=there") == 0
    build_report.assert_called_once_with(
        results_dir=HERE, scale="smoke", folders=[Path()], out_dir=Path("there")
    )
    assert call(report, "") == 1


def test_verify_checks_all_records_and_lists_what_is_wrong(call, monkeypatch, capsys):
    verify_records = mock.Mock(return_value=["a: wrong"])
    monkeypatch.setattr("crope.runs.verify.verify_records", verify_records)
    monkeypatch.setattr("crope.runs.published.set_folders", lambda: [Path("set")])
    assert call(tools, "verify --results-dir=here") == 1
    verify_records.assert_called_once_with([HERE / "runs", Path("set")])
    assert capsys.readouterr().err == "error: a: wrong\n"


def test_prepare_makes_the_named_corpora_of_the_scale(call, monkeypatch):
    prepare = mock.Mock(side_effect=[{"tiny": "not here"}, {}])
    monkeypatch.setattr("crope.runs.prepare.prepare", prepare)
    monkeypatch.setattr("crope.train.device.default_scale", lambda: "quick")
    monkeypatch.setenv("CROPE_DATA_DIR", "elsewhere")
    assert call(tools, "prepare tiny ptb --scale=paper --data-dir=here") == 1
    assert call(tools, "prepare") == 0
    papers = ["pg19", "wikitext2", "ptb"]
    assert prepare.mock_calls == [
        mock.call(["tiny", "ptb"], TokenizerConfig("gpt2", 50257), data_dir=HERE),
        mock.call(papers, TokenizerConfig("bpe", 4096), data_dir=Path("elsewhere")),
    ]


def test_upload_fails_in_one_line_per_run_and_sends_the_others(call, monkeypatch, capsys):
    record, upload = SimpleNamespace(path=Path("a-run")), mock.Mock()
    find_record = mock.Mock(side_effect=[UserError("no such run"), record])
    monkeypatch.setattr("crope.runs.record.find_record", find_record)
    monkeypatch.setattr("crope.runs.tracking.upload", upload)
    assert call(tools, "upload nosuch a-run") == 1
    upload.assert_called_once_with(record, results_dir=RESULTS)
    assert capsys.readouterr().err == "error: no such run\n"


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
