"""Parameter counts by part, counted on the module."""

from crope.model.gpt import GPT


def count_parameters(model: GPT) -> dict[str, int]:
    """Counts the trained parameters by part, and in `total`. A bias counts with its weight.

    Padding rows are not counted; a tied head counts once, as embedding. `embeddings` includes the
    trained parameters of position schemes (the learned table, T5's scalars).
    """
    padding = model.embedding.num_embeddings - model.vocab_size
    counts = {"qkv": 0, "output_projection": 0, "ffn": 0, "norms": 0, "embeddings": 0}
    for name, parameter in model.named_parameters():  # a shared one once
        size = parameter.numel()
        if name in ("embedding.weight", "head.weight"):
            size -= padding * parameter.shape[1]
        counts[part_of(name)] += size
    return {**counts, "total": sum(counts.values())}


def part_of(name: str) -> str:
    """Returns the part of the model that a parameter belongs to, by its name."""
    if ".attn.out_proj." in name:
        return "output_projection"
    if ".attn." in name:
        return "qkv"
    if ".ffn_up." in name or ".ffn_down." in name:
        return "ffn"
    return "norms" if "norm." in name else "embeddings"
