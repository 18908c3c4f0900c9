"""Smaller commands, one sub-command each: `python scripts/tools.py SUBCOMMAND --help`.

before    prepare, status
results   explain, publish, readme, release, theory
a run     extrapolate, convert, export, generate, upload (RUN is a folder, a run id or a unique
          start of one)
code      golden
machine   gpu-check
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from crope.errors import (
    ConfigError,
    Parser,
    UserError,
    folder,
    main_errors,
    positive,
)

Options = argparse.Namespace

# Parts of `gpu-check`, in this order; each is one command and continues where it was interrupted.
CHECKS = {
    "tests": "-m pytest -q --durations=10 tests/train/test_cuda.py",
    "bench": "scripts/bench.py",
    "seed0": "scripts/reproduce.py --scale {scale} --seeds 1 --results-dir {results} tracker=none",
    "seeds": "scripts/reproduce.py --scale {scale} --results-dir {results} tracker=none",
    "publish": "scripts/tools.py publish {machine} --scale {scale} --results-dir {results}",
}
CHECKS_OF_RUNS = ("seed0", "seeds", "publish")


def prepare(options: Options) -> int:
    """Download, check and tokenise datasets ahead of training; print their n-gram losses."""
    from crope import paper
    from crope.config import CORPORA
    from crope.runs.compose import load_run, nearest, quoted_override
    from crope.runs.prepare import prepare
    from crope.train.device import default_scale

    overrides = [quoted_override("data_dir", options.data_dir)] if options.data_dir else []
    config = load_run([f"scale={options.scale or default_scale()}", *overrides]).config
    corpora = options.corpora or list(paper.DATASET_LABELS)
    if unknown := [name for name in corpora if name not in CORPORA]:
        raise ConfigError(f"no conf/data/{unknown[0]}.yaml;{nearest(unknown[0], CORPORA)}")
    return int(bool(prepare(corpora, config.tokenizer, data_dir=Path(config.data_dir))))


def status(options: Options) -> None:
    """Done, running, failed and missing runs of studies, and the time left."""
    from crope.runs.status import render, study_states
    from crope.runs.study import TABLES

    states = study_states(
        options.study or TABLES,
        scale=options.scale,
        seeds=options.seeds,
        results_dir=options.results_dir,
    )
    print(render(states))


def explain(options: Options) -> None:
    """The runs behind a number and how it is computed; without CELL, every cell and difference."""
    from crope.report.explain import explain

    print(
        explain(
            options.cell, results_dir=options.results_dir, scale=options.scale, folders=options.runs
        )
    )


def publish(options: Options) -> None:
    """Copy complete and diverged runs of one scale and n-gram losses into results/published."""
    from crope.report.publish import publish

    run_ids = publish(options.results_dir, options.machine, scale=options.scale)
    print(f"{len(run_ids)} runs published for {options.machine}; `make readme` updates the README")


def readme(options: Options) -> None:
    """Rewrite the README's tables and picture from results/published."""
    from crope.report.publish import update_readme

    update_readme()


def theory(options: Options) -> None:
    """The papers' constructions, limits and decay in numbers: results/theory."""
    from crope.theory.report import make_recall, make_theory

    if options.part == "recall":
        make_recall(options.results_dir / "theory")
    else:
        make_theory(options.results_dir / "theory", seeds=options.seeds)


def extrapolate(options: Options) -> int:
    """Measure finished runs at 1, 2 and 4 times their training length."""
    from crope.runs.extrapolate import extrapolate

    def measure(record: Any) -> None:
        rows = extrapolate(record, factors=options.factors, max_tokens=options.tokens)["lengths"]
        losses = (
            f"L={row['seq_len']} {row.get('note') or format(row['loss_nats'], '.4f')}"
            for row in rows
        )
        print(f"{record.path.name}: {'; '.join(losses)} (nats per token)", flush=True)

    return _each(options, measure)


def convert(options: Options) -> None:
    """Convert a finished RoPE run to CRoPE and fine-tune it."""
    from crope.interop.convert import convert

    record = _record(options.run, options)
    result = convert(record, steps=options.steps, lr=options.lr)
    tuned = (
        f"{arm} {result['loss_nats'][arm]:.4f} -> {loss:.4f}"
        for arm, loss in result["tuned_loss_nats"].items()
    )
    print(
        f"{record.path.name}: trained {result['loss_nats']['trained']:.4f}; {'; '.join(tuned)} (nats per token)"
    )


def export(options: Options) -> None:
    """Write a finished run as a folder that `transformers` opens."""
    from crope.interop.export import export_transformers

    record = _record(options.run, options)
    out = options.out or options.results_dir / "export" / record.path.name
    export_transformers(record, out)
    print(out)


def generate(options: Options) -> None:
    """Print a prompt as a finished run continues it."""
    from crope.interop.generate import generate

    print(
        generate(
            _record(options.run, options),
            options.prompt,
            tokens=options.tokens,
            temperature=options.temperature,
            top_k=options.top_k,
            seed=options.seed,
        )
    )


def release(options: Options) -> None:
    """Pack the models of Tables 1 and 2 for `transformers`, with records, cards and checksums."""
    from crope.interop.release import release

    from crope.train.device import default_scale

    scale = options.scale or default_scale()
    print(release(options.results_dir, scale=scale, seed=options.seed))


def upload(options: Options) -> int:
    """Send finished runs to wandb (after `wandb login`), each in place of what is there under its
    id.
    """
    from crope.runs.tracking import upload

    def send(record: Any) -> None:
        upload(record, results_dir=options.results_dir)
        print(f"{record.path.name}: uploaded", flush=True)

    return _each(options, send)


def golden(options: Options) -> None:
    """Remake the golden losses; a model whose losses changed gets a new numerics version, its runs
    become stale.
    """
    from crope.train.golden import remake

    print(f"changed or new: {', '.join(remake()) or 'none'}")


def gpu_check(options: Options) -> int:
    """Tests, step times, seed 0 of both tables, all seeds and publication on a new GPU machine.

    Parts that passed at this commit on this device are skipped unless they are named; the first
    that fails ends the command. Their output is also in <results>/gpu-check.
    """
    from crope.config import ROOT
    from crope.files import write_json
    from crope.runs import provenance
    from crope.runs.compose import load_run
    from crope.runs.record import read_records
    from crope.train.device import can_compile

    if unknown := set(options.parts) - CHECKS.keys():
        raise ConfigError(f"no part {min(unknown)}; the parts are {', '.join(CHECKS)}")
    facts = provenance.collect(load_run().config.runtime, {})
    shown = ("device", "driver", "cuda", "python", "packages", "commit", "dirty")
    print(*(f"{name}: {facts[name]}" for name in shown), sep="\n", flush=True)
    can_compile(facts["device_kind"])
    folder = (options.results_dir / "gpu-check").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    passed_file = folder / "passed.json"
    passed = json.loads(passed_file.read_text()) if passed_file.exists() else {}
    slug = re.sub("[^a-z0-9]+", "-", facts["device"].lower()).strip("-")
    names = {"scale": options.scale or "paper", "machine": options.machine or slug}
    names["results"] = options.results_dir.absolute()
    for record in read_records(options.results_dir / "runs")[0]:
        device = record.provenance["device"]
        if record.summary["scale"] == names["scale"] and device != facts["device"]:
            raise UserError(
                f"{record.path}: made on {device}, not on {facts['device']}; choose another --results-dir"
            )
    environment = os.environ | {"CROPE_TEST_DEVICE": facts["device_kind"], "PYTHONUNBUFFERED": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    for part in options.parts or CHECKS:
        words = [word.format(**names) for word in CHECKS[part].split()]
        if part == "bench" and names["scale"] == "smoke":
            words.append("--smoke")
        uncommitted = facts["commit"] is None or facts["dirty"]
        this = {"commit": facts["commit"], "command": words}
        on_device = f"{part} on {facts['device']}"
        if this.items() <= passed.get(on_device, {}).items() and not (uncommitted or options.parts):
            print(f"{part}: passed before", flush=True)
            continue
        if part in CHECKS_OF_RUNS and uncommitted:
            raise UserError(f"{part}: runs of uncommitted code cannot be published; commit first")
        started = time.monotonic()
        status = _run_and_log([sys.executable, *words], folder / f"{part}.log", environment)
        minutes = round((time.monotonic() - started) / 60, 1)
        print(f"{part}: exit status {status} after {minutes} minutes", flush=True)
        if status:
            return status
        passed[on_device] = this | {"minutes": minutes}
        write_json(passed_file, passed)
    return 0


def _run_and_log(command: list[str], log: Path, environment: dict[str, str]) -> int:
    """Runs a command, its output here and in a file; returns its exit status.

    SIGINT, SIGTERM and SIGHUP are passed on to it, once each, and raise KeyboardInterrupt when it
    has saved its runs and ended.
    """
    from crope.config import ROOT

    signals: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        process.terminate()

    with (
        log.open("w", encoding="utf-8") as file,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=environment,
            text=True,
            process_group=0,  # Ctrl-C reaches this process only
        ) as process,
    ):
        before = {
            number: signal.signal(number, pass_on)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            if signal.getsignal(number) != signal.SIG_IGN  # by nohup
        }
        try:
            for line in process.stdout or ():
                print(line, end="", flush=True)
                file.write(line)
                file.flush()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    if signals:
        raise KeyboardInterrupt(signals[0])
    return process.returncode


def _record(name: str, options: Options) -> Any:
    """The record of a run by its folder, its id or the start of its id."""
    from crope.runs.record import find_record

    return find_record(name, results_dir=options.results_dir)


def _each(options: Options, call: Callable[[Any], None]) -> int:
    """Exit status 1 if `call` failed for the record of one of the runs; the others are done
    anyway.
    """
    failed = False
    for name in options.runs:
        try:
            call(_record(name, options))
        except UserError as error:
            print(f"error: {error}", file=sys.stderr, flush=True)
            failed = True
    return int(failed)


def build_parser() -> Parser:
    parser = Parser(description=__doc__)
    commands = parser.add_subparsers(metavar="SUBCOMMAND", required=True)

    def command(call: Callable[[Options], int | None], *shared: str) -> Parser:
        """A sub-parser with these arguments of SHARED_ARGUMENTS."""
        assert call.__doc__
        name = call.__name__.replace("_", "-")
        summary = call.__doc__.split("\n\n")[0].rstrip(".")
        sub = commands.add_parser(name, help=summary, description=call.__doc__)
        sub.set_defaults(call=call)
        sub.add_shared(*shared)
        return sub

    sub = command(prepare)
    sub.add_argument("corpora", nargs="*", metavar="CORPUS", help="default: the paper's datasets")
    sub.add_argument(
        "--scale", help="whose tokenizer (default: paper with a CUDA device, else quick)"
    )
    sub.add_argument(
        "--data-dir", type=folder, help="raw text (default: CROPE_DATA_DIR, else data/raw)"
    )
    command(status, "--study", "--scale", "--seeds", "--results-dir")
    sub = command(explain, "--scale", "--results-dir", "--runs")
    sub.add_argument(
        "cell",
        nargs="?",
        help="table1/<dataset>/<model>, table2/<row>/<dataset>/<model>, P1 to P5 or"
        " <study>/<first>-<second>",
    )
    sub = command(publish, "--results-dir")
    sub.add_argument(
        "machine",
        metavar="MACHINE",
        help="a name for the kind of machine, such as h200 or cpu-fp32",
    )
    sub.add_argument("--scale", required=True)
    command(readme)
    sub = command(theory, "--results-dir")
    sub.add_argument(
        "--seeds", type=positive, default=5, help="of the pointer task, per model (default: 5)"
    )
    sub.add_argument(
        "--part",
        choices=["recall"],
        help="train the runs of the recall experiment (hours; continues where it stopped)",
    )
    sub = command(extrapolate, "runs", "--results-dir")
    sub.add_argument(
        "--factors", nargs="+", type=int, default=[1, 2, 4], help="times the training length"
    )
    sub.add_argument(
        "--tokens", type=int, help="of the split; 0: all (default: the run's eval.full_tokens)"
    )
    sub = command(convert, "run", "--results-dir")
    sub.add_argument(
        "--steps", type=int, default=200, help="updates of the fine-tuning (default: 200)"
    )
    sub.add_argument(
        "--lr", type=float, help="its constant learning rate (default: the run's last)"
    )
    sub = command(export, "run", "--results-dir")
    sub.add_argument(
        "out", nargs="?", type=Path, metavar="OUT", help="default: export/<run id> in the results"
    )
    sub.add_argument(
        "--format",
        choices=["transformers"],
        default="transformers",
        help="default: transformers",
    )
    sub = command(generate, "run", "--results-dir")
    sub.add_argument("--prompt", default="\n", help="default: a line feed")
    sub.add_argument("--tokens", type=positive, default=100, help="to draw (default: 100)")
    sub.add_argument(
        "--temperature", type=float, default=1.0, help="0: the most likely token (default: 1)"
    )
    sub.add_argument("--top-k", type=int, default=0, help="only from the k most likely; 0: all")
    sub.add_argument("--seed", type=int, default=0, help="of the sampling (default: 0)")
    sub = command(release, "--results-dir")
    sub.add_argument("--scale", help="default: paper with a CUDA device, else quick")
    sub.add_argument("--seed", type=int, default=0, help="of the runs (default: 0)")
    command(upload, "runs", "--results-dir")
    command(golden)
    sub = command(gpu_check, "--scale", "--results-dir")
    sub.add_argument("parts", nargs="*", metavar="PART", help=f"default: {', '.join(CHECKS)}")
    sub.add_argument("--machine", help="name to publish under (default: that of the device)")
    return parser


def main() -> int:
    options = build_parser().parse_args()
    return options.call(options) or 0


if __name__ == "__main__":
    with main_errors():
        sys.exit(main())
