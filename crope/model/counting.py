"""Parameter counts by part, and FLOPs per token, in closed form."""

from dataclasses import asdict, dataclass

from crope.config import CHUNK, ModelConfig, half_rank

T5_BUCKETS = 32  # trained scalars per head of `relative_bias`
FACTORED = ("lowrank", "blockdiag")  # projections that never form their dense weight


@dataclass(frozen=True)
class Parameters:
    """Numbers of trained parameters by part. Padding rows are not counted; a tied head counts once,
    as embedding.

    `embeddings` includes the trained parameters of position schemes (the learned table, T5's
    scalars).
    """

    qkv: int
    output_projection: int
    ffn: int
    norms: int
    embeddings: int

    @property
    def total(self) -> int:
        return sum(asdict(self).values())


def count_parameters(model: ModelConfig, *, vocab_size: int, max_len: int) -> Parameters:
    """Parameters of the decoder by part, in closed form; a bias counts with its weight."""
    width, d_model, ffn = model.attention_width, model.d_model, model.ffn_width
    qkv_biases = (width + 2 * model.kv_width) * model.qkv_bias
    trained_positions = {"learned": max_len * d_model, "relative_bias": T5_BUCKETS * model.n_heads}
    return Parameters(
        qkv=model.n_layers * (qkv_weights(model) + qkv_biases),
        output_projection=model.n_layers * (width * d_model + d_model),
        ffn=model.n_layers * (2 * d_model * ffn + ffn + d_model),
        norms=(2 * model.n_layers + 1) * 2 * d_model,
        embeddings=vocab_size * d_model * (1 if model.tied_head else 2)
        + trained_positions.get(model.position, 0),
    )


def qkv_weights(model: ModelConfig) -> int:
    """Stored weights of Q, K and V in one layer, without biases.

    Raises ValueError for a projection that is not entered here.
    """
    d_model, width = model.d_model, model.attention_width
    dense = d_model * width
    weights = {
        "real": 3 * dense,
        "halved": 3 * dense,
        "complex": 3 * dense // 2,
        "complex_misaligned": 3 * dense // 2,
        "complex_wide": 3 * dense // 2,
        "conjugate": 3 * dense // 2,
        "blockdiag": 3 * dense // 2,
        "complex_qk": 2 * dense,
        "complex_v": 5 * dense // 2,
        "lowrank": 3 * half_rank(d_model, width) * (d_model + width),
        "multi_query": dense + 2 * d_model * model.kv_width,
    }
    if model.projection not in weights:
        raise ValueError(
            f"projection {model.projection}: enter its number of weights in qkv_weights of {__name__}"
        )
    return weights[model.projection]


def train_flops_per_token(model: ModelConfig, *, vocab_size: int, seq_len: int) -> int:
    """FLOPs of training per token: a multiply-add is two, forward and backward are three forwards.

    The causal half of the attention scores counts, not the full square. Complex projections
    multiply by their dense weight (ComplexLinear.weight) and count like real ones.
    """
    width, d_model = model.attention_width, model.d_model
    dense = d_model * (width + 2 * model.kv_width)
    stored = qkv_weights(model)
    # ComplexLinear and its kind build the dense weight and multiply by that.
    qkv = stored if model.projection in FACTORED else dense
    mix = (
        _linear_attention_flops(model, seq_len)
        if model.attention == "linear"
        else 2 * seq_len * width
    )
    block = 2 * (qkv + width * d_model + 2 * d_model * model.ffn_width) + mix
    return 3 * (model.n_layers * block + 2 * d_model * vocab_size)


def _linear_attention_flops(model: ModelConfig, seq_len: int) -> int:
    """Per token and layer, Eq. 19 in chunks of C tokens.

    Per head: three half squares of C K (two score matrices, weighted values) and one of C (sum of
    scores), then updating and reading a (K, K) state for the numerator and a (K,) state for the
    denominator.
    """
    chunk, width = min(CHUNK, seq_len), model.head_width
    return model.n_heads * (3 * chunk * width + chunk + 4 * width**2 + 4 * width)
