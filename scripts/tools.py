"""Smaller commands, one sub-command each: `tools.py SUBCOMMAND --help`.

for your runs   prepare, list, show, compare, status, explain, generate, export, extrapolate
to maintain     publish, readme, theory, verify, golden

RUN is a folder, an id or its start.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cli import Parser, folder_of_runs, main_errors, positive

from crope.errors import StorageError, UserError

Options = argparse.Namespace

# A sub-command imports what it needs when it is called: an answer must not wait for torch.


def prepare(options: Options) -> int:
    """Download, check and tokenise datasets ahead of training."""
    from crope import paper
    from crope.config import DataConfig
    from crope.data.tokens import make_tokens
    from crope.machine import default_scale
    from crope.plan.compose import group_values, load_run, quoted_override, typed

    names = options.corpora or paper.DATASET_LABELS
    # Raises for a misspelt or damaged one, before another is fetched.
    corpora = [typed(DataConfig, group_values("data", name)) for name in names]
    overrides = [f"scale={options.scale or default_scale()}"]
    if options.data_dir:
        overrides.append(quoted_override("data_dir", options.data_dir))
    config = load_run(overrides).config
    # It has printed what failed.
    return int(bool(make_tokens(corpora, config.tokenizer, data_dir=Path(config.data_dir))))


def list_(options: Options) -> None:
    """List your runs, newest first: status, step, last full validation loss, minutes."""
    from crope.records.status import list_runs

    print(list_runs(options.results_dir, options.pattern, by_loss=bool(options.sort)))


def show(options: Options) -> None:
    """Show a finished run: settings beyond the defaults, losses, time, machine, commit, folder."""
    from crope.records.status import show

    print(show(_record(options.run, options)), end="")


def compare(options: Options) -> None:
    """Subtract runs of the first selection from those of each other one, at equal seed and data."""
    from crope.records.store import set_folders
    from crope.report.compare import compare

    folders = set_folders() if options.published else options.runs
    out = options.out or options.results_dir / "compare.png"
    print(compare([options.first, *options.others], folders or [options.results_dir / "runs"], out))


def status(options: Options) -> None:
    """Count done, running, failed and missing runs of studies."""
    from crope.plan.study import TABLES
    from crope.records.status import render_status

    where = {"scale": options.scale, "seeds": options.seeds, "results_dir": options.results_dir}
    print(render_status(options.study or TABLES, **where))


def explain(options: Options) -> None:
    """Show the runs behind a number and how it is computed; without CELL, list every one."""
    from crope.report.explain import explain

    where = {"results_dir": options.results_dir, "scale": options.scale, "folders": options.runs}
    print(explain(options.cell, **where))


def publish(options: Options) -> None:
    """Add complete and diverged runs of one scale, and their n-gram losses, to results/published."""
    from crope.report.publish import publish

    run_ids = publish(options.results_dir, options.set, scale=options.scale, why=options.why)
    print(f"{len(run_ids)} runs published for {options.set}; `make readme` updates the README")


def readme(options: Options) -> None:
    """Rewrite the README, pages of docs/ and their pictures from results/published."""
    from crope.report.docs import update_readme

    update_readme()


def theory(options: Options) -> None:
    """Compute the papers' constructions and limits: results/theory."""
    from crope.theory.report import make_theory

    make_theory(options.results_dir / "theory")


def verify(options: Options) -> int:
    """Check records to the last number: what follows from their metrics, and their digests."""
    from crope.records.store import set_folders
    from crope.records.verify import verify_records

    own = options.results_dir / "runs"
    if not options.folders and not own.is_dir():
        print(f"no runs in {own}: published sets alone", file=sys.stderr)
    folders = options.folders or [*filter(Path.is_dir, [own]), *set_folders()]
    problems = verify_records(folders)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    print(f"{len(problems)} problems in {len(folders)} folders")
    return int(bool(problems))


def extrapolate(options: Options) -> int:
    """Measure finished runs at 1, 2 and 4 times their training length."""
    from crope.runs.extrapolate import extrapolate

    failed = False
    for name in options.runs:
        try:
            record = _record(name, options)
            rows = extrapolate(record)["lengths"]
        except StorageError:
            raise  # no other run would fare better
        except UserError as error:
            print(f"error: {error}", file=sys.stderr, flush=True)  # in the order of the runs
            failed = True
            continue
        losses = []
        for row in rows:
            loss = row.get("note") or format(row["loss_nats"], ".4f")
            losses.append(f"L={row['seq_len']} {loss}")
        print(f"{record.run_id}: {'; '.join(losses)} (nats per token)", flush=True)
    return int(failed)


def export(options: Options) -> None:
    """Write a finished run's weights as a folder that `transformers` opens."""
    from crope.interop.export import export_transformers

    record = _record(options.run, options)
    out = options.out or options.results_dir / "export" / record.run_id
    export_transformers(record, out)
    print(out)


def generate(options: Options) -> None:
    """Print a prompt as a finished run continues it."""
    from crope.interop.generate import generate

    sampling = {"temperature": options.temperature, "top_k": options.top_k, "seed": options.seed}
    record = _record(options.run, options)
    print(generate(record, options.prompt, tokens=options.tokens, **sampling))


def golden(options: Options) -> None:
    """Remake the golden losses. Raise NUMERICS in crope/plan/identity.py for what changed on purpose:
    older runs of it become stale.
    """
    from crope.train.golden import remake

    print(f"changed or new: {', '.join(remake()) or 'none'}")


def _record(name: str, options: Options) -> Any:
    """Finds a run by its folder, its id or the start of its id."""
    from crope.records.store import find_record

    return find_record(name, results_dir=options.results_dir)


def arg(*names: str, **options: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Makes an argument of one sub-command."""
    return names, options


# Sub-command -> its shared arguments (by name), then its own.
COMMANDS: dict[Callable[[Options], int | None], list[Any]] = {
    prepare: [
        arg("corpora", nargs="*", metavar="CORPUS", help="default: the paper's datasets"),
        arg("--scale", help="whose tokenizer (default: paper with a CUDA device, else quick)"),
        arg("--data-dir", type=Path, help="raw text (default: CROPE_DATA_DIR, else data/raw)"),
    ],
    list_: [
        "--results-dir",
        arg("pattern", nargs="?", default="", metavar="PATTERN", help="part of a name or setting"),
        arg("--sort", choices=["loss"], help="the lowest loss first (default: the newest run)"),
    ],
    show: ["run", "--results-dir"],
    compare: [
        *("--results-dir", "--runs"),
        arg("first", metavar="RUNS", help="a model, a folder, a part of an id, or KEY=VALUE,..."),
        arg("others", nargs="+", metavar="RUNS", help="less the first; record_set=NAME: of a set"),
        arg("--published", action="store_true", help="published runs in place of yours"),
        arg("--out", type=Path, metavar="PNG", help="default: RESULTS_DIR/compare.png"),
    ],
    status: ["--study", "--scale", "--seeds", "--results-dir"],
    explain: [
        *("--scale", "--results-dir", "--runs"),
        arg(
            "cell",
            nargs="?",
            help="table1/<dataset>/<model>, table2/<row>/<dataset>/<model>, P1, Q1, ... or"
            " <study>/<first>-<second>",
        ),
    ],
    generate: [
        *("run", "--results-dir"),
        arg("--prompt", default="\n", help="default: a line feed"),
        arg("--tokens", type=positive, default=100, help="to draw (default: 100)"),
        arg(
            "--temperature",
            type=float,
            default=1.0,
            help="0: the most likely token (default: 1)",
        ),
        arg("--top-k", type=int, default=0, help="only from the k most likely; 0: all"),
        arg("--seed", type=int, default=0, help="of the sampling (default: 0)"),
    ],
    export: [
        *("run", "--results-dir"),
        arg("out", nargs="?", type=Path, metavar="OUT", help="default: RESULTS_DIR/export/<run>"),
    ],
    extrapolate: ["runs", "--results-dir"],
    publish: [
        "--results-dir",
        arg("set", metavar="SET", help="the set's name, such as quick-bf16"),
        arg("--scale", required=True),
        arg("--why", default="", help="why runs of several versions of the code are one set"),
    ],
    readme: [],
    theory: ["--results-dir"],
    verify: [
        "--results-dir",
        arg(
            "folders",
            nargs="*",
            type=folder_of_runs,
            metavar="DIR",
            help="folders of runs, and published sets (default: all)",
        ),
    ],
    golden: [],
}


def build_parser() -> Parser:
    parser = Parser(description=__doc__)
    commands = parser.add_subparsers(metavar="SUBCOMMAND", required=True)
    for call, parameters in COMMANDS.items():
        text = call.__doc__ or ""
        summary = text.partition("\n\n")[0].rstrip(".")
        sub = commands.add_parser(call.__name__.rstrip("_"), help=summary, description=text)
        sub.set_defaults(call=call)
        for parameter in parameters:
            if isinstance(parameter, str):
                sub.add_shared(parameter)
            else:
                names, options = parameter
                sub.add_argument(*names, **options)
    return parser


def main() -> int:
    options = build_parser().parse_args()
    return options.call(options) or 0


if __name__ == "__main__":
    with main_errors():
        sys.exit(main())
