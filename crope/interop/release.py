"""A release: the trained models of Tables 1 and 2 as one archive, for people who train none.

crope-quick-s0.tar.gz
    README.md       the models and their losses
    models/<run_id>/    opened by `transformers` (crope/interop/export.py), with a card each
    records/<run_id>/   the run's record, as in results/published
    SHA256SUMS      of every file: `sha256sum -c SHA256SUMS`
crope-quick-s0.tar.gz.sha256
"""

import gzip
import tarfile
import tempfile
from pathlib import Path

from crope.errors import UserError
from crope.files import sha256_file, write_text
from crope.interop.export import export_transformers
from crope.report.frame import cell_runs, load_frame
from crope.report.publish import copy_record
from crope.runs.record import Record, read_record
from crope.runs.study import expected_cells


def release(results_dir: Path, *, scale: str, seed: int = 0) -> Path:
    """Writes <results_dir>/release/crope-<scale>-s<seed>.tar.gz and its checksum; returns the path.

    Runs of the tables that are missing, or whose weights are not on disk, are printed and left out.
    The same runs give the same bytes. Raises UserError if no run is there.
    """
    chosen = released_runs(results_dir, scale=scale, seed=seed)
    if not chosen:
        raise UserError(
            f"{results_dir / 'runs'}: no run of the tables with weights at scale={scale}, seed"
            f" {seed}; `make reproduce SCALE={scale}` makes them"
        )
    archive = results_dir / "release" / f"crope-{scale}-s{seed}.tar.gz"
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".") as temporary:
        folder = Path(temporary) / f"crope-{scale}-s{seed}"
        for record in chosen:
            export_transformers(record, folder / "models" / record.path.name)
            copy_record(record, folder / "records" / record.path.name)
            print(f"{record.path.name}: exported")
        write_text(folder / "README.md", render_readme(chosen, scale=scale, seed=seed))
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        sums = [f"{sha256_file(path)}  {path.relative_to(folder)}\n" for path in files]
        write_text(folder / "SHA256SUMS", "".join(sums))
        packed = Path(temporary) / archive.name
        pack(folder, packed)
        packed.replace(archive)
    write_text(
        archive.with_name(f"{archive.name}.sha256"), f"{sha256_file(archive)}  {archive.name}\n"
    )
    return archive


def released_runs(results_dir: Path, *, scale: str, seed: int) -> list[Record]:
    """The complete runs of the tables with this seed whose weights are on disk, in their order.

    Raises UserError for two runs of one cell.
    """
    frame, _ = load_frame([results_dir / "runs"])
    chosen = []
    for cell in {cell.key: cell for cell in expected_cells(scale)}.values():
        name = f"{cell.model} on {cell.dataset}, row {cell.row}"
        runs = cell_runs(frame[frame["seed"] == seed], cell)
        if runs.empty:
            print(f"left out: {name}: no complete run with seed {seed}")
            continue
        path = Path(runs["path"].iloc[0])
        if not (path / "weights.pt").exists():
            print(f"left out: {name}: {path.name} has no weights.pt")
        else:
            chosen.append(read_record(path))
    return chosen


def render_readme(records: list[Record], *, scale: str, seed: int) -> str:
    """The list of models with their validation losses."""
    rows = [
        f"| `{record.path.name}` | {record.summary['val_full']['final_nats']:.4f} |"
        for record in records
    ]
    return "\n".join(
        [
            "# Models of the CRoPE reproduction",
            "",
            f"{len(records)} runs of Tables 1 and 2 at the scale {scale}, seed {seed}. Each folder",
            "of `models/` opens with `AutoModelForCausalLM.from_pretrained` and has a card; `records/`",
            "holds configuration, curves and provenance. Check the files: `sha256sum -c SHA256SUMS`.",
            "",
            "| model | validation loss, nats per token |",
            "|---|---|",
            *rows,
            "",
        ]
    )


def pack(folder: Path, archive: Path) -> None:
    """A .tar.gz whose bytes depend on names and contents only."""

    def anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        entry.mode = 0o644
        return entry

    with (
        archive.open("wb") as raw,
        gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            tar.add(path, f"{folder.name}/{path.relative_to(folder)}", filter=anonymous)
