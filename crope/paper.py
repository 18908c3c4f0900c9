"""What the paper states and prints, with its sections; nothing is measured by this repository.

Names on the left are this repository's (config keys, ablation files); labels on the right are the
paper's. XPOS is its name for GPT-2 with absolute positions (Sec. 5.1), not the later rotary method
xPos.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class PrintedLoss:
    """`mean ± std` as printed, nats per token. The paper does not say what the ± is a spread of."""

    mean_nats: float
    std_nats: float


MODEL_LABELS = {"xpos": "XPOS", "rope": "RoPE", "crope": "CRoPE"}
DATASET_LABELS = {"pg19": "PG-19", "wikitext2": "Wikitext-2", "ptb": "Penn Treebank"}

ROW_LABELS = {  # Table 2's, by the name of the ablation file
    "base": "B=16, L=1024, D=128, γ=0.8, step=1000",
    "b2_l512_g09_s2000": "B=2, L=512, D=128, γ=0.9, step=2000",
    "b2_l512_g09_s1000": "B=2, L=512, D=128, γ=0.9, step=1000",
    "b2_l512_d64": "B=2, L=512, D=64, γ=0.9, step=1000",
}
TABLE_TITLES = {  # the paper's captions, the second without its last word, "Dataset"
    "table1": "Final validation loss",
    "table2": "Final validation loss for different model/training configurations on PG-19",
}
PRINTED_DECIMALS = {"table1": 4, "table2": 3}


def _losses(*columns: tuple[float, float]) -> dict[str, PrintedLoss]:
    """Makes one row of a table: mean and std in the order of MODEL_LABELS."""
    return {
        model: PrintedLoss(*column) for model, column in zip(MODEL_LABELS, columns, strict=True)
    }


TABLE1 = {  # Sec. 6.1
    "pg19": _losses((6.8025, 0.0318), (6.5809, 0.0333), (6.5836, 0.0317)),
    "wikitext2": _losses((5.7486, 0.0274), (5.3644, 0.0279), (5.3730, 0.0255)),
    "ptb": _losses((4.4288, 0.0224), (4.0212, 0.0243), (4.0158, 0.0233)),
}

TABLE2 = {  # Sec. 6.2, all on PG-19
    "base": _losses((6.802, 0.032), (6.581, 0.033), (6.584, 0.032)),
    "b2_l512_g09_s2000": _losses((6.874, 0.117), (6.658, 0.113), (6.627, 0.110)),
    "b2_l512_g09_s1000": _losses((6.822, 0.110), (6.607, 0.107), (6.584, 0.106)),
    "b2_l512_d64": _losses((6.907, 0.115), (6.699, 0.111), (6.700, 0.113)),
}


def printed_loss(table: str, row: str, dataset: str, model: str) -> PrintedLoss | None:
    """Returns what the paper prints for one cell; None where it prints none (other corpora or
    models).
    """
    if table == "table1" and row == "base":
        return TABLE1.get(dataset, {}).get(model)
    if table == "table2" and dataset == "pg19":
        return TABLE2.get(row, {}).get(model)
    return None


def crope_minus_rope(row: str, dataset: str) -> float | None:
    """Returns the paper's difference in a row of Table 1 or 2, nats per token; None for others."""
    table = "table1" if row == "base" else "table2"
    crope, rope = (printed_loss(table, row, dataset, model) for model in ("crope", "rope"))
    return crope.mean_nats - rope.mean_nats if crope and rope else None


def row_label(row: str) -> str:
    """Returns Table 2's label of an ablation, or its own name where the paper has none."""
    return ROW_LABELS.get(row, row)
