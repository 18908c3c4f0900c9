"""Small models for the tests of the adapter."""

import torch
import transformers
from torch import nn


class Attention(nn.Module):
    """The projections of two heads of queries, one of keys and one of values."""

    def __init__(self, *, bias=False, head_dim=4):
        super().__init__()
        self.head_dim = head_dim
        self.q_proj = nn.Linear(8, 2 * head_dim, bias=bias)
        self.k_proj = nn.Linear(8, head_dim, bias=bias)
        self.v_proj = nn.Linear(8, head_dim, bias=bias)
        self.o_proj = nn.Linear(2 * head_dim, 8)


class Quantised(nn.Linear):
    """A subclass, as those of bitsandbytes."""


class Adapted(nn.Module):
    """A wrapper, as those of peft (LoRA, DoRA, IA3)."""

    def __init__(self, base_layer):
        super().__init__()
        self.base_layer = base_layer


def times_i(channels, pairing, head_dim=4):
    """Multiplication by i in the channel pairs: a weight W is complex-linear if W i = i W."""
    distance = head_dim // 2 if pairing == "half" else 1
    block = torch.kron(torch.tensor([[0.0, -1.0], [1.0, 0.0]]), torch.eye(distance))
    return torch.kron(torch.eye(channels // len(block)), block)


SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "pad_token_id": 0,
}
GROUPED = SIZES | {"num_key_value_heads": 2, "head_dim": 8}
EXPERTS = GROUPED | {"num_local_experts": 2, "num_experts_per_tok": 1}
IDS = torch.arange(3, 51).view(2, 24)


def build(name="LlamaForCausalLM", **sizes):
    """A tiny random model of transformers; biases are random too."""
    torch.manual_seed(0)
    model_class = getattr(transformers, name)
    model = model_class(model_class.config_class(**(sizes or GROUPED))).eval()
    for name, value in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(value)
    return model


def logits(model):
    with torch.no_grad():
        return model.eval()(input_ids=IDS).logits


def same_logits(one, other):
    """Whether two models have the same logits, to the last bit."""
    return torch.equal(logits(one), logits(other))
