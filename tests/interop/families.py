"""Tiny random models of transformers."""

import torch
import transformers

SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
OWN = {
    "gpt2": {},
    "gptj": {"rotary_dim": 4},
}
GROUPED = {"intermediate_size": 48, "num_key_value_heads": 2, "head_dim": 8}
IDS = torch.arange(3, 67).view(1, 64)


def build(family="llama", **options):
    torch.manual_seed(0)
    sizes = SIZES | OWN.get(family, GROUPED) | options
    config = transformers.AutoConfig.for_model(family, **sizes)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for name, value in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(value)
    return model


def logits(model):
    with torch.no_grad():
        return model(IDS).logits
