"""CRoPE in a model you already have: its Q, K and V made complex-linear in place, and dense again.

Works on any `torch.nn.Module` whose projections are separate `nn.Linear` layers, such as Llama,
Mistral, Qwen, Gemma and GPT-J in `transformers` (docs/own-model.md). A converted model's state dict
has the original's names and dense weights, so `save_pretrained`, `Trainer`, `torch.save` and
`load_state_dict` work as before. Needs only torch.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from crope.model.complex_linear import ComplexLinear
from crope.model.projections import dense_linear

Pairing = Literal["interleaved", "half"]

# Channel pairs of the rotation by `config.model_type` of `transformers`; tests/interop measures each.
HALF = """
    arcee gemma gemma2 gemma3_text gpt_oss granite llama mistral mixtral olmo olmo2 olmo3 olmoe qwen2
    qwen2_moe qwen3 qwen3_moe seed_oss smollm3 starcoder2
"""
INTERLEAVED = "cohere cohere2 ernie4_5 glm glm4 gptj helium"
PAIRINGS: dict[str, Pairing] = dict.fromkeys(HALF.split(), "half")
PAIRINGS |= dict.fromkeys(INTERLEAVED.split(), "interleaved")

# Of each layer whose dense weight `state_dict` gave: an empty tensor that counts the writes to it.
# Not an attribute, because the layer's copies have given nothing.
WRITES: WeakKeyDictionary[Any, Tensor] = WeakKeyDictionary()
# By a dense weight that was given: the layer, and how often its `a` had been written to.
GIVEN = WeakTensorKeyDictionary()


class Replaced(NamedTuple):
    """The share of a layer's squared weight norm that was kept: about 1/2 by "nearest" for weights
    without structure, 0 by "fresh".
    """

    name: str
    kept: float


@torch.no_grad()
def complexify(
    model: nn.Module,
    *,
    names: Iterable[str] = ("q_proj", "k_proj", "v_proj"),
    pairing: Pairing | None = None,
    head_dim: int | None = None,
    init: Literal["fresh", "nearest"],
) -> list[Replaced]:
    """Replaces `nn.Linear` layers by `ComplexLinear` layers of half the weights, in place.

    names      last parts of the layers' paths
    pairing    channel pairs of the model's rotation: "half" for (i, i + K/2) of a head of width K
               (Llama), "interleaved" for (2i, 2i + 1) (GPT-J); None: PAIRINGS[config.model_type]
    head_dim   K, needed for "half" where the attention layer has no `head_dim`
    init       "fresh": normal with the replaced weight's standard deviation, to train from the
               start; "nearest": least squares, loses about half of a trained weight

    Biases, dtype, device and requires_grad are kept. Call it before making the optimiser and
    wrappers (DistributedDataParallel, peft), which would keep the old weights. Raises ValueError
    before any change.
    """
    if init not in ("fresh", "nearest"):
        raise ValueError(f"init={init!r}: must be 'fresh' or 'nearest'")
    layers = _select(model, names)
    new_layers = {
        path: ComplexLinear.from_linear(layer, **_pairs(model, path, pairing, head_dim))
        for path, layer in layers.items()
    }
    replaced = []
    for path, new in new_layers.items():
        weight, kept = layers[path].weight.float(), 0.0
        if init == "fresh":
            for part in (new.a, new.b):
                part.normal_().mul_(weight.std())
        else:
            lost = (weight - new.weight.float()).square().sum() / weight.square().sum()
            kept = 1 - lost.item()
        new.register_state_dict_post_hook(_write_dense)
        new.register_load_state_dict_pre_hook(_read_dense)
        new.register_forward_pre_hook(_check_given)
        replaced.append(Replaced(path, kept))
        model.set_submodule(path, new.train(layers[path].training))
    return replaced


def merge(model: nn.Module) -> list[str]:
    """Replaces every ComplexLinear by the `nn.Linear` of its dense weight, in place; returns their
    paths. The outputs are equal.
    """
    merged = []
    for path, layer in list(model.named_modules()):
        if isinstance(layer, ComplexLinear):
            _check_given(layer)
            model.set_submodule(path, dense_linear(layer).train(layer.training))
            merged.append(path)
    return merged


def _select(model: nn.Module, names: Iterable[str]) -> dict[str, Any]:
    """Returns path -> layer for last parts of paths. Raises ValueError for a name without a layer,
    or one that is no plain `nn.Linear`.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    layers: dict[str, Any] = {}
    for name in names:
        found = [path for path in modules if f".{path}".endswith(f".{name}")]
        if not found:
            linear = [path for path, layer in modules.items() if isinstance(layer, nn.Linear)]
            choice = ", ".join(sorted({path.rpartition(".")[2] for path in linear}))
            raise ValueError(
                f"no layer is named {name!r}. Linear layers of this model: {choice}."
                " Pass names=[...]; one layer of Q, K and V: docs/own-model.md, 'Fused layers'"
            )
        layers |= {path: modules[path] for path in found}
    # A weight that a second layer shares would stay dense there; a pruned one is no parameter.
    uses = Counter(id(value) for _, value in model.named_parameters(remove_duplicate=False))
    for path, layer in layers.items():
        if type(layer) is not nn.Linear or uses[id(layer.weight)] != 1:
            raise ValueError(
                f"{path} is a {torch.typename(layer)}. It must be a plain nn.Linear whose weight no"
                " other layer shares; call complexify once, before quantisation, adapters and pruning"
            )
    return layers


def _pairs(
    model: nn.Module, path: str, pairing: Pairing | None, head_dim: int | None
) -> dict[str, Any]:
    """Returns `pairing` and `head_dim` of the ComplexLinear for this path. Raises ValueError if the
    pairing is unknown or not that of the model's rotation.
    """
    attention = model.get_submodule(path.rpartition(".")[0])
    config = getattr(attention, "config", getattr(model, "config", None))
    known = PAIRINGS.get(getattr(config, "model_type", ""))
    pairing = pairing or known
    if pairing is None:
        raise ValueError(
            f"{path}: pairing is not known. Pass pairing=... and verify it with crope.adapt.check"
        )
    if known not in (None, pairing):
        raise ValueError(f"{path}: pairing={pairing!r}, but the model has {known!r}")
    if pairing == "half":
        head_dim = getattr(attention, "head_dim", head_dim)
        rope = getattr(config, "rope_parameters", None) or {}
        # For all layers or for each type of them; before version 5 in the configuration itself.
        parts = [part for part in (rope, *rope.values()) if isinstance(part, dict)]
        shares = [getattr(config, "partial_rotary_factor", None)]
        shares += [part.get("partial_rotary_factor") for part in parts]
        share = min(filter(None, shares), default=1)
        if share != 1:
            raise ValueError(
                f"{path}: the model rotates only {share:.0%} of each head, which pairing='half' does"
                " not support. Use a model that rotates whole heads"
            )
    return {"pairing": pairing, "head_dim": head_dim}


def _write_dense(layer: Any, state: dict[str, Tensor], prefix: str, metadata: Any) -> None:
    """Puts the dense `weight` in the place of `a` and `b`: a hook of `state_dict`."""
    _check_given(layer)
    del state[f"{prefix}a"], state[f"{prefix}b"]
    with torch.inference_mode(False):  # whose tensors count no writes
        weight = layer.dense_weight().detach()
        given = WRITES.setdefault(layer, weight.new_empty(0)).detach()
        given.data = weight  # `detach` has made the version counter a common one
        if not layer.a.is_inference():
            GIVEN[given] = (ref(layer), layer.a._version)
    state[f"{prefix}weight"] = given


def _check_given(layer: nn.Module, *_: Any) -> None:
    """Raises RuntimeError if a weight that `state_dict` gave was written to, as running averages
    do: a dense layer would change with it, this one does not.
    """
    if not torch.compiler.is_compiling() and layer in WRITES and WRITES[layer]._version:
        raise RuntimeError(
            "the weight of a ComplexLinear in a state dict was written to, which does not change"
            " the layer; load that state dict, or average the parameters with"
            " torch.optim.swa_utils.AveragedModel"
        )


def _read_dense(
    layer: Any,
    state: dict[str, Tensor],
    prefix: str,
    metadata: Any,
    strict: bool,
    missing: list[str],
    unexpected: list[str],
    errors: list[str],
) -> None:
    """Puts `a` and `b` in the place of a dense `weight`: a hook of `load_state_dict`.

    They are equal to the last bit if the weight is complex-linear; any other weight is an error.
    """
    weight = state.pop(f"{prefix}weight", None)
    if weight is None:
        return _check_given(layer)
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    nearest = ComplexLinear.from_linear(linear, pairing=layer.pairing, head_dim=layer.head_dim)
    if not nearest.weight.equal(weight):
        errors.append(f"{prefix}weight is not complex-linear; load it before complexify")
    giver, version = GIVEN.get(weight, (lambda: None, 0))
    source = giver()
    if source is not None and source.a._version != version and not source.weight.equal(weight):
        errors.append(
            f"{prefix}weight is older than the rest of a state dict that was kept during training;"
            " keep copy.deepcopy(model.state_dict())"
        )
    state[f"{prefix}a"], state[f"{prefix}b"] = nearest.a, nearest.b
    WRITES.pop(layer, None)  # what was written is loaded
