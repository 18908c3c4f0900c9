"""The scripts as commands: what they refuse, what a multirun trains, output and exit status."""

import shutil
from pathlib import Path
from unittest import mock

import pytest
import report
import reproduce
import tools
import train

from crope.config import ROOT
from crope.errors import ConfigError, StorageError, UserError
from crope.runs.run import Outcome
from tests.conftest import TOY_OVERRIDES, raises_one_line, run_script
from tests.toy_runs import toy_corpus, train_toy


@pytest.fixture
def call(monkeypatch):
    """What `main` of a script returns, or exits with."""
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # set by train.py

    def call_main(script, words, *more):
        monkeypatch.setattr("sys.argv", [f"{script.__name__}.py", *words.split(), *more])
        try:
            return script.main()
        except SystemExit as ended:
            return ended.code

    return call_main


@pytest.mark.parametrize(
    ("script", "arguments", "word"),
    [
        (train, "crope", "EQUAL"),
        (train, "-m model=rope,crop", "did you mean crope"),
        (train, "-m hydra/launcher=jobli", "jobli.*docs/sweeps.md"),
        (train, "-m hydra.launcher.n_jobs=2", "'BasicLauncherConf'$"),
        (train, "-m model=rope model.position=none,rotry", "did you mean rotary"),
        (tools, "status --seeds -1", "seeds"),
        (tools, "explain --runs nosuch", "nosuch"),
        (tools, f"verify {ROOT}/results", "no runs"),
        (train, "-m study=table1,table2", "no conf/study/table1,table2.yaml"),
        (train, "-m model=rope train.lr=0.001,-0.002", "above 0"),
        (tools, "prepare pbt", "did you mean ptb"),
        (reproduce, "--seed 3", "--seed"),
        (reproduce, "--study=base train.lr=1", "train.lr=1"),
    ],
)
def test_a_mistake_is_refused_before_anything_is_trained(
    script, arguments, word, call, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("crope.runs.run.execute", None)
    with raises_one_line(ConfigError, word):
        call(script, arguments)


HERE, SETS = Path("results"), [Path("results/published/tiny-fp32")]
DRAWN = {"tokens": 5, "temperature": 0.0, "top_k": 3, "seed": 2}


@pytest.mark.parametrize(
    ("words", "function", "given"),
    [
        ("list lr --sort=loss", "records.status.list_runs", mock.call(HERE, "lr", by_loss=True)),
        (
            "status --study=base --scale=quick --seeds=2",
            "records.status.render_status",
            mock.call(["base"], scale="quick", seeds=2, results_dir=HERE),
        ),
        ("show RUN", "records.status.show", mock.call("RUN")),
        (
            "compare a b --runs=results/published/tiny-fp32 --out=c.png",
            "report.compare.compare",
            mock.call(["a", "b"], SETS, Path("c.png")),
        ),
        (
            "explain P1 --scale=quick --runs=results/published/tiny-fp32",
            "report.explain.explain",
            mock.call("P1", results_dir=HERE, scale="quick", folders=SETS),
        ),
        (
            "generate RUN --prompt=x --tokens=5 --temperature=0 --top-k=3 --seed=2",
            "interop.generate.generate",
            mock.call("RUN", "x", **DRAWN),
        ),
        (
            "publish mine --scale=quick --why=reason",
            "report.publish.publish",
            mock.call(HERE, "mine", scale="quick", why="reason"),
        ),
        ("theory", "theory.report.make_theory", mock.call(HERE / "theory")),
        ("readme", "report.docs.update_readme", mock.call()),
        ("golden", "train.golden.remake", mock.call()),
    ],
)
def test_a_tool_calls_its_function_with_its_options(words, function, given, call, monkeypatch):
    called = mock.Mock(return_value="")
    monkeypatch.setattr("crope.records.store.find_record", lambda name, results_dir: name)
    monkeypatch.setattr(f"crope.{function}", called)
    monkeypatch.chdir(ROOT)
    assert call(tools, words) == 0
    assert called.call_args == given


@pytest.mark.parametrize(
    ("script", "words"),
    [(tools, "verify {0}/mine"), (report, "--scale smoke --runs {0}/mine --out {0}/out")],
)
def test_an_invalid_record_is_named_and_the_status_1(
    script, words, call, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("crope.report.frame.set_folders", list)
    record = tmp_path / "mine" / "torn"
    record.mkdir(parents=True)
    (record / "summary.json").write_text("{")
    assert call(script, words.format(tmp_path)) == 1
    assert str(record) in capsys.readouterr().err
    if script is report:
        assert "scale: smoke" in (tmp_path / "out" / "index.html").read_text()


def test_verify_says_that_a_results_folder_has_no_runs(call, monkeypatch, capsys, tmp_path):
    checked = mock.Mock(return_value=[])
    monkeypatch.setattr("crope.records.verify.verify_records", checked)
    assert call(tools, f"verify --results-dir={tmp_path}") == 0
    assert f"no runs in {tmp_path}/runs" in capsys.readouterr().err
    assert tmp_path / "runs" not in checked.call_args.args[0]


def test_a_multirun_goes_on_after_a_run_that_fails_and_ends_with_its_error(
    call, toy_data, tmp_path, capsys
):
    words = [*TOY_OVERRIDES, f"results_dir={tmp_path}", "model=rope", "train.lr=1e30,0.001"]
    with pytest.raises(UserError, match="not finite"):
        call(train, "-m", *words)
    assert len(list(tmp_path.glob("runs/*"))) == 2
    assert "full validation" in capsys.readouterr().out


def results(monkeypatch, outcome):
    """The runs that `execute`, in whose place `outcome` stands, is called for."""
    runs = []

    def execute(run):
        runs.append(run)
        return outcome(run)

    monkeypatch.setattr("crope.runs.run.execute", execute)
    return runs


def test_a_disk_that_fails_ends_a_multirun_at_once(call, monkeypatch, tmp_path):
    """The next run would fail as well, after minutes."""

    def fail(run):
        raise StorageError("a/file: No space left on device")

    runs = results(monkeypatch, fail)
    error = call(train, f"-m results_dir={tmp_path} seed=3,4", *TOY_OVERRIDES)
    assert len(runs) == 1
    assert error == "error: a/file: No space left on device"


def test_a_signal_ends_a_multirun_with_its_status(call, monkeypatch, tmp_path):
    runs = results(monkeypatch, lambda run: Outcome(run.run_id, "stopped", "stopped", 15))
    assert call(train, f"-m results_dir={tmp_path} seed=3,4", *TOY_OVERRIDES) == 143
    assert len(runs) == 1


@pytest.mark.parametrize(
    ("words", "scale"),
    [
        ("study=paper_row", "paper"),  # the study's own
        ("study=base seed=0 data=ptb", "medium"),
        ("study=paper_row scale=smoke", "smoke"),
    ],
)
def test_a_study_runs_at_its_own_scale_else_that_of_the_machine(
    words, scale, call, monkeypatch, tmp_path
):
    monkeypatch.setattr("crope.plan.compose.default_scale", lambda: "medium")
    runs = results(monkeypatch, lambda run: Outcome(run.run_id, "complete", "done"))
    call(train, f"-m {words} seed=1 model=rope results_dir={tmp_path}")
    assert [run.scale for run in runs] == [scale]


def test_a_mistake_of_a_command_is_one_line_and_exit_status_1(tmp_path):
    done = run_script("train.py", "train.lrr=1", "scale=smoke", f"results_dir={tmp_path}")
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1


def test_reproduce_without_data_and_network(tmp_path):
    """The study `tiny` instead of Table 1, in a copy with smaller smoke runs and texts."""
    ignored = shutil.ignore_patterns(".*", "raw", "tokens", "results", "tests")
    copy = shutil.copytree(ROOT, tmp_path / "copy", ignore=ignored)
    smoke = copy / "conf/scale/smoke.yaml"
    smoke.write_text(smoke.read_text().replace("4096", "300").replace("40", "4"))
    grammar = copy / "crope/data/grammar.py"
    grammar.write_text(grammar.read_text().replace("20_000", "900").replace("2_000", "90"))
    hidden = {"CROPE_DATA_DIR": f"{tmp_path}/none", "HF_HUB_OFFLINE": "1"}
    hidden["CROPE_CACHE_DIR"] = f"{tmp_path}/cache"
    options = f"--scale=smoke --study=table1 --seeds=1 --results-dir={tmp_path} tracker=none"
    done = run_script("reproduce.py", *options.split(), root=copy, **hidden)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 runs, 3 to train" in done.stdout
    assert "error: ptb" in done.stderr
    _, _, printed = done.stdout.partition("\ntiny: loss after the last step")
    for model in ("XPOS", "CRoPE"):
        assert f"\n{model} − RoPE; tiny (a grammar)\n" in printed


def test_tools_measure_and_export_a_run(call, capsys, tmp_path):
    with toy_corpus(tmp_path / "tokens"):
        record = train_toy(tmp_path, "model=rope")
        name, where = record.path.name[:12], f"--results-dir={tmp_path}"
        assert call(tools, f"extrapolate {name}", where) == 0
        assert call(tools, f"export {name}", where) == 0
    measured, exported = capsys.readouterr().out.splitlines()
    assert measured.startswith(f"{record.path.name}: L=16 ")
    assert "; L=64 " in measured
    assert exported == str(tmp_path / "export" / record.path.name)
    assert Path(exported, "config.json").exists()
