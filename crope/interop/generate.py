"""Text from a finished run: a prompt continued token by token.

Shapes: T tokens of the context, V vocabulary, K kept tokens.
"""

import torch
from tokenizers import Tokenizer

from crope.errors import UserError
from crope.model.gpt import GPT
from crope.records.store import Record
from crope.runs.load import load_run_tokens, load_trained


def generate(
    record: Record, prompt: str, *, tokens: int, temperature: float, top_k: int, seed: int
) -> str:
    """Returns the prompt and `tokens` further tokens, drawn from the run's model.

    temperature   of the logits; 0: the most likely token
    top_k         draw from the k most likely tokens only; 0: from all
    """
    # In evaluation mode: text is drawn from the model that was validated, without dropout.
    model = load_trained(record).eval()
    tokenizer = Tokenizer.from_file(str(load_run_tokens(record).folder / "tokenizer.json"))
    context = tokenizer.encode(prompt).ids
    if not context:
        raise UserError("the prompt is empty; give at least one character")
    generator = torch.Generator().manual_seed(seed)
    for _ in range(tokens):
        logits_V = next_logits(model, context)
        context.append(sample_token(logits_V, temperature, top_k, generator))
    return str(tokenizer.decode(context))


@torch.no_grad()
def next_logits(model: GPT, context: list[int]) -> torch.Tensor:
    """Computes the logits of the token after the context's last max_len tokens, (V,) in float32.

    Keys and values are not kept between tokens, so every model can do it.
    """
    tokens_1T = torch.tensor([context[-model.max_len :]])
    return model.logits(model(tokens_1T)[0, -1]).float()


def sample_token(
    logits_V: torch.Tensor, temperature: float, top_k: int, generator: torch.Generator
) -> int:
    """Draws a token from softmax(logits / temperature) of the `top_k` most likely."""
    if temperature == 0:
        return int(logits_V.argmax())
    kept_K, token_K = logits_V.topk(min(top_k or len(logits_V), len(logits_V)))
    probability_K = torch.softmax(kept_K / temperature, dim=-1)
    return int(token_K[torch.multinomial(probability_K, 1, generator=generator)])
