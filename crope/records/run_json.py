"""What a run says of itself, and what its files must hold.

results/runs/<run_id>/
    run.json             written first: model, dataset, row, scale, seed, what differs from defaults,
                         digests of the code
    config.yaml          the whole resolved configuration
    provenance.json      commit, command, versions, device, data hashes, start and end (UTC)
    metrics.jsonl        a JSON object per line, each with "step", the optimiser updates done
    summary.json         written last; `status: complete` in it is the only definition of done
    weights.safetensors  state dict after the last step
    extrapolation.json   measured on the weights later, with their SHA-256
    checkpoint-*.pt      while the run is incomplete

Readers take run.json as it is, because conf/ may have changed since.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    Field,
    FiniteFloat,
    NonNegativeInt,
    PositiveInt,
    TypeAdapter,
    ValidationError,
)

from crope.files import sha256
from crope.plan.compose import Run, non_default_settings
from crope.plan.identity import cell_key, numerics_version, run_hash
from crope.records.sources import code_digests

EXTRAPOLATION = "extrapolation.json"

Nats = Annotated[FiniteFloat, Field(gt=0)]


class RunJson(BaseModel):
    """run.json; `settings` are what differs from the group files: ["train.lr=0.003"]."""

    run_id: str
    model: str
    dataset: str
    row: str
    scale: str
    seed: NonNegativeInt
    precision: str
    device_kind: str
    settings: list[str]
    cell_key: str
    numerics_version: NonNegativeInt
    code: dict[str, str] = {}  # `sources.code_digests`; none of older runs


class Split(BaseModel):
    """A split's entry in the data's meta.json."""

    tokens: PositiveInt
    bytes: PositiveInt
    sha256: str


class Splits(BaseModel):
    train: Split
    validation: Split


class Data(BaseModel):
    splits: Splits


class Execution(BaseModel):
    """An execution of a run; None where it is unknown."""

    commit: str | None
    dirty: bool | None
    command: str | None
    device: str | None
    started_utc: str | None


class Provenance(Execution):
    """provenance.json: the last attempt at a run, with the earlier ones, oldest first."""

    resumed_from: list[Execution] = []
    threads: NonNegativeInt
    data: Data


class Failure(BaseModel):
    type: str
    message: str
    step: NonNegativeInt | None


class Complete(BaseModel):
    status: Literal["complete"]
    finished_utc: str
    metrics_sha256: str
    weights_sha256: str


class Failed(BaseModel):
    status: Literal["failed"]
    finished_utc: str
    error: Failure


Summary = Annotated[Complete | Failed, Field(discriminator="status")]


class Length(BaseModel):
    seq_len: PositiveInt
    loss_nats: Nats | None  # None where the positions or the split end before


class Extrapolation(BaseModel):
    """extrapolation.json"""

    weights_sha256: str
    lengths: list[Length]


def describe(run: Run, device_kind: str) -> dict[str, Any]:
    """Returns the content of run.json."""
    return {
        "run_id": run.run_id,
        **run.names,
        "seed": run.config.seed,
        "precision": run.config.train.precision,
        "device_kind": device_kind,
        "settings": non_default_settings(run),
        "cell_key": cell_key(run.container),
        "numerics_version": numerics_version(run.container["model"]),
        "code": code_digests(),
        "validation_share": run.config.data.validation_share,
    }


def check_record(record: Mapping[str, Any], metrics: bytes | None = None) -> None:
    """Raises ValueError if a finished run's files are invalid or not of one run.

    record    the fields of a `store.Record`: its id and its files as read
    metrics   the bytes of its metrics.jsonl; None of a published run
    """
    run: RunJson = check_schema(RunJson, record["run"], "run.json")
    check_schema(Provenance, record["provenance"], "provenance.json")
    summary = check_schema(Summary, record["summary"], "summary.json")
    try:  # the hash in the name says more than a schema would
        digest = run_hash(record["config"], version=run.numerics_version)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"config.yaml: not that of a run ({error})") from error
    named = f"{run.model}-{run.dataset}-{run.row}-s{record['config']['seed']}-{digest}"
    # The name says which run a folder holds: reports, resuming and wandb go by it.
    if not record["run_id"] == run.run_id == named:
        raise ValueError(
            f"config.yaml and run.json are those of {named}: edited, or made by code with other keys"
        )
    complete = summary.status == "complete"
    if complete and metrics is not None and sha256(metrics) != summary.metrics_sha256:
        raise ValueError("metrics.jsonl does not have the SHA-256 that summary.json states")
    if record["extrapolation"] is not None:
        measured = check_schema(Extrapolation, record["extrapolation"], EXTRAPOLATION)
        if measured.weights_sha256 != record["summary"].get("weights_sha256"):
            raise ValueError(f"{EXTRAPOLATION}: measured on other weights than this run's")


def check_schema(schema: Any, value: Any, name: str) -> Any:
    """Returns `value` as the schema's model. Raises ValueError naming the file and the first wrong
    key.
    """
    try:
        # Strict: a number as text, or a fraction of a step, was not written by this program.
        return TypeAdapter(schema).validate_python(value, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise ValueError(f"{name}: {key}: {first['msg']}") from error
