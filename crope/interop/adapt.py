"""CRoPE in a model that you already have: its Q, K and V layers made complex-linear in place, saved
and loaded, checked against the model's own rotation, and made dense again.

Any `torch.nn.Module` whose projections are separate `nn.Linear` layers, such as Llama, Mistral,
Qwen2, Gemma and GPT-J in `transformers` (docs/own-model.md). Needs no other package than torch,
`save` and `load` also `transformers`. Errors are ValueErrors of one line, raised before anything is
changed.

Shapes: D in-features, E out-features, K width of a head.
"""

import gc
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import chain, combinations
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from crope.model.complex_linear import ComplexLinear
from crope.model.projections import StructuredLinear, dense_linear

Pairing = Literal["interleaved", "half"]
Inputs = Mapping[str, Any] | Tensor
Batches = Inputs | Iterable[Inputs]

LAYERS_FILE, VARIANT = "complex_layers.json", "complex"
RIDGE = 1e-4  # of the inputs' mean second moment: unseen directions are fitted in weights
# Of `check`. With the right pairs errors are below 6e-4, also in bfloat16; with others they grow with
# the angles of the rotation, from 0.02 (Llama 3) at two tokens to 0.7.
TOLERANCE = 1e-3

# Pairs of the rotation by `config.model_type` of `transformers`, verified by `check` on tiny models
# (DeepSeek's, where `check` has no K to compare, by its rotation itself).
HALF = """
    afmoe apertus arcee aria_text bitnet cwm diffllama doge emu3 exaone4 exaone_moe flex_olmo gemma
    gemma2 gemma3_text gpt_oss granite granitemoe granitemoeshared hyperclovax internlm3 jais2 lfm2
    llama minimax minimax_m2 ministral3 mistral mixtral mllama_text_model nanochat nemotron olmo
    olmo2 olmo3 olmoe phi phimoe qwen2 qwen2_5_vl_text qwen2_moe qwen2_vl_text qwen3 qwen3_moe
    qwen3_vl_text seed_oss smollm3 solar_open stablelm starcoder2 vaultgemma
"""
INTERLEAVED = """
    cohere cohere2 deepseek_v2 deepseek_v3 ernie4_5 ernie4_5_moe ernie4_5_vl_moe_text glm glm4
    glm4v_text glm_ocr_text gptj helium llama4_text
"""
PAIRINGS: dict[str, Pairing] = dict.fromkeys(HALF.split(), "half")
PAIRINGS |= dict.fromkeys(INTERLEAVED.split(), "interleaved")


class Replaced(NamedTuple):
    """One replaced layer: its name, its parameters before and after, and what is kept of it.

    kept    1 - |W - M|^2 / |W|^2 of the dense weight W and the complex-linear M; the same of the
            outputs on the calibration inputs for init="activations"; 0 for "fresh"
    """

    name: str
    before: int
    after: int
    kept: float


class Checked(NamedTuple):
    """One attention layer: how far its rotation is from commuting with the pairs of its Q and K."""

    name: str
    error: float
    commutes: bool


def complexify(
    model: nn.Module,
    *,
    names: Iterable[str] | str = ("q_proj", "k_proj", "v_proj"),
    pairing: Pairing | None = None,
    head_dim: int | None = None,
    init: Literal["nearest", "activations", "fresh"] = "nearest",
    inputs: Batches = (),
    dry_run: bool = False,
) -> list[Replaced]:
    """Replaces `nn.Linear` layers by a `ComplexLinear` of half the weights, in place.

    names      layers whose path ends with one of these, whole parts of it ("q_proj", a full path);
               a single string is a regular expression for the full path
    pairing    of the model's rotation: "half" (Llama), "interleaved" (GPT-J); None: from PAIRINGS.
               For a model that is not listed there it has to be named, and `check` verifies it
    head_dim   K; None: `head_dim` of the attention layer or of its configuration
    init       nearest: least squares (Eq. 30's part of each 2x2 block), for a trained model;
               activations: least squares of the outputs on `inputs`; fresh: normal, with the
               standard deviation of the replaced weight (a zero weight stays zero), biases 0
    inputs     for "activations": a batch or several, each a tensor or a mapping of the arguments of
               the model's forward; more tokens than D, none of them padding
    dry_run    replaces nothing and returns what would be replaced

    Keeps dtype, device and requires_grad of each parameter. Biases are kept, except that
    "activations" adds the mean output that the projection loses. Norms between projection and
    rotation (Qwen3's) keep their gains: only with equal gains in a pair does the rotation still
    commute with the projection.

    Raises for what docs/own-model.md lists under "What is refused", with the name of the layer.
    """
    layers = _select(model, names)
    attentions = {name: model.get_submodule(name.rpartition(".")[0]) for name in layers}
    configs = {
        name: getattr(attention, "config", getattr(model, "config", None))
        for name, attention in attentions.items()
    }
    pairing = _pairing(configs, pairing)
    _check_replaceable(model, layers)
    widths = {
        name: _head_dim(name, layer, attentions[name], configs[name], head_dim)
        for name, layer in layers.items()
    }
    moments = input_moments(model, layers, inputs) if init == "activations" else {}
    complex_layers, replaced = {}, []
    for name, layer in layers.items():
        new = ComplexLinear.from_linear(layer, pairing=pairing, head_dim=widths[name])
        if init == "nearest":
            kept = _kept(new, layer)
        elif init == "activations":
            kept = _fit_outputs(new, layer, moments.pop(name))
        elif init == "fresh":
            kept = _initialise(new, layer.weight)
        else:
            raise ValueError(f"init={init!r}: must be 'nearest', 'activations' or 'fresh'")
        complex_layers[name] = new.train(layer.training)
        replaced.append(Replaced(name, _size(layer), _size(new), kept))
    if not dry_run:
        for name, new in complex_layers.items():
            model.set_submodule(name, new)
    return replaced


def merge(model: nn.Module) -> list[str]:
    """Replaces every ComplexLinear and StructuredLinear by the `nn.Linear` with its dense weight, in
    place; returns the names.

    The model then has its original architecture and equal outputs, and every stack saves and serves
    it. For a merged copy, merge `copy.deepcopy(model)`. Raises if one of these layers has hooks.
    """
    layers = _layers(model, ComplexLinear | StructuredLinear)
    for name, layer in layers.items():
        _check_hooks(name, layer)
    for name, layer in layers.items():
        model.set_submodule(name, dense_linear(layer).train(layer.training))
    return list(layers)


@torch.no_grad()
def check(model: nn.Module, inputs: Inputs) -> list[Checked]:
    """Measures for each attention layer of a complexified model whether its rotation commutes with
    the complex structure of Q and K.

    inputs    one batch of at least two tokens per sequence, a tensor or a mapping of the arguments
              of the model's forward; more tokens show wrong pairs of slow rotations better: give 64

    In each attention layer the outputs of Q, K and V are replaced by normal noise. If Q and K are
    both multiplied by i, then the attention is unchanged exactly if the code between projection and
    score commutes with i: (Jq)^T R (Jk) = q^T R k. `error` is the change of the attention's output
    relative to the change when Q alone is multiplied; Q and K are the layers in which the output is
    not affine. Norms with unequal gains in a pair do not commute.

    Raises if there is no ComplexLinear, if an attention has nothing to compare (Q and K not both
    complex-linear, a single token), or if the inputs do not reach it.
    """
    attentions: dict[str, list[Any]] = {}
    for name, layer in _layers(model, ComplexLinear).items():
        attentions.setdefault(name.rpartition(".")[0], []).append(layer)
    if not attentions:
        raise ValueError("the model has no ComplexLinear; call complexify before check")
    errors: dict[str, float] = {}

    def measure(name: str, attention: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        errors[name] = _rotation_error(name, attention, attentions[name], args, kwargs)

    _run(model, inputs, attentions, measure, errors)
    return [Checked(name, error, error < TOLERANCE) for name, error in errors.items()]


def _rotation_error(
    name: str, attention: nn.Module, layers: list[Any], args: Any, kwargs: dict[str, Any]
) -> float:
    """`Checked.error` of an attention layer, which was called with these arguments."""
    kwargs = {key: value for key, value in kwargs.items() if "past" not in key}  # no cache

    def run(*times_i: Any, scaled: Any = None, factor: float = 1.0) -> Tensor:
        with ExitStack() as hooks:
            for seed, layer in enumerate(layers):
                scale = factor if layer is scaled else 1.0
                noise = partial(_noise, seed=seed, times_i=layer in times_i, scale=scale)
                hooks.enter_context(layer.register_forward_hook(noise))
            output = attention.forward(*args, **kwargs)
        # On the CPU: Apple's GPUs have no float64.
        return (output if isinstance(output, Tensor) else output[0]).cpu().double()

    before = run()
    alone = {layer: (run(layer) - before).norm() for layer in layers}
    scored = []
    for layer in layers:
        without, large = run(scaled=layer, factor=0), run(scaled=layer, factor=64)
        # In V the output is affine, in Q and K it saturates.
        if (large - without - 64 * (before - without)).norm() > (before - without).norm():
            scored.append(layer)
    scored = scored or layers  # an attention without softmax is affine in each
    if len(scored) < 2 or min(alone.values()) == 0:
        raise ValueError(
            f"{name}: nothing to compare; make Q and K both complex-linear, but not the output"
            " projection, and give inputs of two tokens or more"
        )
    errors = [
        (run(first, second) - before).norm() / alone[first]
        for first, second in combinations(scored, 2)
    ]
    return min(errors).item()


def _noise(layer: Any, args: Any, y: Tensor, *, seed: int, times_i: bool, scale: float) -> Tensor:
    """A forward hook: normal noise instead of the output, equal at each call, or i times that."""
    generator = torch.Generator().manual_seed(seed)
    noise = scale * torch.randn(y.shape, generator=generator, device="cpu").to(y)
    if not times_i:
        return noise
    first, second = noise.unflatten(-1, layer.pairs).unbind(y.dim())
    return torch.stack((-second, first), dim=y.dim()).flatten(y.dim() - 1)


def layout(model: nn.Module) -> dict[str, dict[str, Any]]:
    """Name -> arguments of each ComplexLinear: what `restore` needs besides the state dict."""
    return {
        name: {"pairing": layer.pairing, "head_dim": layer.head_dim}
        for name, layer in _layers(model, ComplexLinear).items()
        if type(layer) is ComplexLinear  # no subclass, which `restore` could not tell apart
    }


def restore(model: nn.Module, layers: Mapping[str, Mapping[str, Any]]) -> None:
    """Gives a dense model the layers of a `layout`, in place; their weights come from the state
    dict of the complexified model. Raises if one of these layers is no `nn.Linear` of such heads.
    """
    modules, restored = dict(model.named_modules()), {}
    for name, pairing in layers.items():
        linear = modules.get(name)
        if not isinstance(linear, nn.Linear):
            kind = "missing" if linear is None else f"a {type(linear).__name__}"
            raise ValueError(f"{name} is {kind}; restore needs the dense model of this layout")
        restored[name] = ComplexLinear.from_linear(linear, **pairing)
    for name, layer in restored.items():
        model.set_submodule(name, layer)


def save(model: Any, folder: str | Path, **options: Any) -> None:
    """Saves a complexified model of `transformers` with its halved weights; `load` opens it.

    The weights are model.complex.safetensors, which `from_pretrained` does not find: it would fill
    Q, K and V with random values. options: those of `save_pretrained`. Raises if no layer is a
    ComplexLinear, the model's class is not one of `transformers`, or the folder has other weights,
    which `from_pretrained` would open.
    """
    layers = layout(model)
    if not layers:
        raise ValueError("the model has no ComplexLinear; save it with save_pretrained")
    import transformers

    architecture = type(model).__name__
    if getattr(transformers, architecture, None) is not type(model):
        raise ValueError(
            f"{architecture} is no class of transformers, so that load could not build it; store"
            " layout(model) and the state dict instead"
        )
    files = Path(folder).glob("*model[.-]*")  # model.safetensors, pytorch_model-00001-of-00002.bin
    others = [path for path in files if f".{VARIANT}" not in path.name]
    if others:
        raise ValueError(
            f"{others[0]}: from_pretrained would open these dense weights; choose another folder"
        )
    model.save_pretrained(folder, variant=VARIANT, **options)
    (Path(folder) / LAYERS_FILE).write_text(json.dumps(layers, indent=1), encoding="utf-8")


def load(folder: str | Path, **options: Any) -> Any:
    """The complexified model that `save` wrote to this folder.

    options: those of `from_pretrained` (dtype, device_map, ...). Raises if `save` did not write it.
    """
    import transformers

    file = Path(folder) / LAYERS_FILE
    if not file.is_file():
        raise ValueError(f"{file} is missing; give a folder that crope.interop.adapt.save wrote")
    layers = json.loads(file.read_text(encoding="utf-8"))
    config = transformers.AutoConfig.from_pretrained(folder)
    architecture = getattr(transformers, config.architectures[0])

    class Complexified(architecture):  # type: ignore[misc, valid-type]
        """Has its complex layers when from_pretrained looks for the weights."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            restore(self, layers)

    model = Complexified.from_pretrained(folder, variant=VARIANT, **options)
    model.__class__ = architecture  # `save_pretrained` writes the name of the class
    return model


def _layers(model: nn.Module, kind: Any) -> dict[str, Any]:
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, kind)}


def _select(model: nn.Module, names: Iterable[str] | str) -> dict[str, Any]:
    """Path -> layer, for the suffixes or the regular expression `names`."""
    modules = dict(model.named_modules(remove_duplicate=False))
    patterns = {names: names} if isinstance(names, str) else {}
    patterns = patterns or {name: rf"(.*\.)?{re.escape(name)}" for name in names}
    chosen: set[str] = set()
    for name, pattern in patterns.items():
        try:
            expression = re.compile(pattern)
        except re.error as error:
            raise ValueError(
                f"names={name!r} is no regular expression ({error}); '.*' matches any text"
            ) from error
        matches = {path for path in modules if expression.fullmatch(path)}
        if not matches:
            linear = [path for path, layer in modules.items() if isinstance(layer, nn.Linear)]
            choice = ", ".join(sorted({path.rpartition(".")[2] for path in linear}))
            unmatched = f"no layer is named {name}"
            if isinstance(names, str):
                unmatched = f"no layer's whole path matches '{name}' (a list gives ends of paths)"
            raise ValueError(
                f"{unmatched}; name those of Q, K and V (names=...), or first split the layer that"
                f" holds all three: {choice or 'there is no nn.Linear'}"
            )
        chosen |= matches
    if not chosen:
        raise ValueError("names is empty; name the layers of Q, K and V")
    return {path: layer for path, layer in modules.items() if path in chosen}


def _check_replaceable(model: nn.Module, layers: Mapping[str, Any]) -> None:
    """Raises for a layer that is not plain, or that something else holds on to."""
    uses = Counter(id(value) for _, value in model.named_parameters(remove_duplicate=False))
    holders = _holders()
    if holders:
        gc.collect()  # optimisers that nothing refers to any more
        holders = _holders()
    for name, layer in layers.items():
        weight: Any = getattr(layer, "weight", None)
        plain = type(layer) is nn.Linear and type(weight) is nn.Parameter
        plain = plain and weight.is_floating_point() and weight.itemsize >= 2
        if not plain or not (weight.is_meta or weight.isfinite().all()):
            raise ValueError(
                f"{name} is a {type(layer).__name__}, not an nn.Linear with plain, finite"
                " floating-point weights; complexify the model before it is quantised or gets"
                " adapters, and only once"
            )
        holder = "another layer" if uses[id(weight)] > 1 else holders.get(id(weight))
        if holder:
            raise ValueError(
                f"{name}: its weight is also held by {holder}, which would keep the old one; give"
                " each layer a weight of its own, and make optimisers and wrappers afterwards"
            )
        _check_hooks(name, layer)


def _check_hooks(name: str, layer: nn.Module) -> None:
    """Raises for hooks, which a replaced layer would lose; accelerate offloads by such.

    torch lists the hooks of a module or a tensor in private attributes only.
    """
    hooks = [value for key, value in vars(layer).items() if key.endswith("_hooks")]
    for value in layer.parameters():
        hooks += [value._backward_hooks, value._post_accumulate_grad_hooks]
    if any(hooks) or "forward" in vars(layer):
        raise ValueError(
            f"{name} has hooks (as offloading by accelerate sets them), which would be lost; load"
            " the model without them (no device_map) and add them afterwards"
        )


def _holders() -> dict[int, str]:
    """id of a parameter -> the optimiser or data-parallel wrapper that holds it, of all alive."""
    objects = gc.get_objects()
    # By type: isinstance reads __class__, which runs code of lazy objects or fails on dead proxies
    parents = (torch.optim.Optimizer, nn.parallel.DistributedDataParallel)
    kinds = {kind for kind in set(map(type, objects)) if issubclass(kind, parents)}
    holders: dict[int, str] = {}
    for value in objects:
        if type(value) in kinds:
            if isinstance(value, nn.Module):
                weights = value.parameters()
            else:
                weights = chain.from_iterable(
                    group["params"]
                    for group in getattr(value, "param_groups", ())  # none if its __init__ failed
                )
            holders |= {id(weight): f"a {type(value).__name__}" for weight in weights}
    return holders


def _pairing(configs: Mapping[str, Any], pairing: Pairing | None) -> Pairing:
    """The pairing of all layers' rotation, from PAIRINGS or as given; raises where they differ, or
    where "half" rotates only a part of each head.
    """
    families = {getattr(config, "model_type", None) for config in configs.values()}
    if len(families) > 1:
        raise ValueError(
            f"the layers belong to several parts ({', '.join(sorted(map(str, families)))}); choose"
            " those of one by names=..., or pass that part of the model"
        )
    family = str(families.pop())
    listed = PAIRINGS.get(family, pairing)
    if listed is None:
        raise ValueError(
            f"the pairs of the rotation of model_type {family!r} are not known; name them"
            " (pairing='half' or 'interleaved') and verify them with crope.interop.adapt.check"
        )
    if pairing not in (None, listed):
        raise ValueError(f"the rotation of {family} pairs other channels; use pairing={listed!r}")
    for name, config in configs.items():
        if listed == "interleaved" and getattr(config, "rope_interleave", True) is False:
            raise ValueError(
                f"{name}: rope_interleave=False rotates half-split pairs of a part of each head,"
                " which is not supported; use a model that rotates whole heads"
            )
        share = _rotated_share(config)
        if listed == "half" and share < 1:
            raise ValueError(
                f"{name}: only {share:.0%} of each head is rotated, which pairing='half' does not"
                " support; use a model that rotates whole heads"
            )
    return listed


def _rotated_share(config: Any) -> float:
    """The smallest share of a head that is rotated by pairs (i, i + rotated / 2)."""
    rope = getattr(config, "rope_parameters", None) or {}  # or one dictionary per type of layer
    shares = [1.0]
    for values in (getattr(config, "__dict__", {}), rope, *rope.values()):
        if isinstance(values, Mapping) and values.get("rope_type") != "proportional":
            shares.append(values.get("partial_rotary_factor") or 1.0)
    return min(shares)


def _head_dim(
    name: str, layer: nn.Linear, attention: nn.Module, config: Any, head_dim: int | None
) -> int:
    """K as the attention layer or its configuration says it; raises unless heads fill the layer."""
    hidden = getattr(config, "hidden_size", None)
    heads = getattr(config, "num_attention_heads", None)
    stated = (
        getattr(attention, "qk_head_dim", None)
        or getattr(attention, "head_dim", None)
        or getattr(config, "head_dim", None)
    )
    width = head_dim or stated or (hidden and heads and hidden // heads)
    if not width or width != (stated or width):
        raise ValueError(
            f"{name}: the width of a head is {stated or 'unknown'}; name it (head_dim=...)"
        )
    if width % 2 or layer.out_features % width or layer.in_features % 2:
        raise ValueError(
            f"{name}: {layer.in_features} inputs and {layer.out_features} outputs do not divide"
            f" into channel pairs of heads of width {width}; head_dim must be even and divide the"
            " outputs, and the inputs must be even. Leave a layer without such heads out of `names`"
        )
    return int(width)


def _size(layer: nn.Module) -> int:
    return sum(value.numel() for value in layer.parameters())


@torch.no_grad()
def _kept(new: ComplexLinear, layer: Any, moments_DD: Tensor | None = None) -> float:
    """1 - |W - M|^2 / |W|^2, as the norm of the outputs if moments are given."""
    if layer.weight.is_meta:
        return float("nan")

    def energy(weight: Tensor) -> Tensor:
        outputs = weight if moments_DD is None else weight @ moments_DD.to(weight)
        return (outputs * weight).sum()

    dense = layer.weight.float()
    return 1 - (energy(dense - new.weight.float()) / energy(dense)).item()


@torch.no_grad()
def _initialise(new: ComplexLinear, dense: Tensor) -> float:
    for part in (new.a, new.b):
        part.normal_().mul_(dense.float().std())
    if new.bias is not None:
        new.bias.zero_()
    return 0.0


@torch.no_grad()
def _fit_outputs(new: ComplexLinear, layer: Any, moments: Tensor) -> float:
    """Sets `new` to the least-squares fit of the outputs of `layer`; returns what is kept of them.

    moments    of the inputs x and 1, (D+1, D+1): mean of (x, 1) (x, 1)^T. With a bias, the outputs
               are fitted around their mean, which the bias then restores.

    With complex inputs z_j = x_2j + i x_2j+1 and complex outputs y = C x, the weight w of y = w z
    is E[y z^H] E[z z^H]^-1.
    """
    mean_D, moments_DD = moments[:-1, -1], moments[:-1, :-1].clone()
    if layer.bias is not None:
        moments_DD -= mean_D.outer(mean_D)
    moments_DD.diagonal().add_(RIDGE * moments_DD.diagonal().mean())
    dense = layer.weight.to(moments)
    rows = dense.unflatten(0, new.pairs).transpose(0, 1).flatten(1, -2)  # 2, E/2, D
    xz = torch.complex(moments_DD[:, 0::2], -moments_DD[:, 1::2])  # E[x z^H], (D, D/2)
    zz = xz[0::2] + 1j * xz[1::2]
    weight = torch.linalg.solve(zz, torch.complex(*rows) @ xz, left=False)
    new.a.copy_(weight.real)
    new.b.copy_(-weight.imag)
    if new.bias is not None:
        new.bias.add_(((dense - new.weight.to(moments)) @ mean_D).to(new.bias))
    return _kept(new, layer, moments_DD)


def input_moments(model: nn.Module, names: Collection[str], inputs: Batches) -> dict[str, Tensor]:
    """Name -> second moments of the inputs x and 1 of these layers: mean of (x, 1) (x, 1)^T, (D+1,
    D+1), float64.
    """
    sums: dict[str, Tensor] = {}

    def add(name: str, layer: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        x = args[0].detach().flatten(0, -2)
        device = "cpu" if x.device.type == "mps" else x.device  # Apple's GPUs have no float64
        x = x.to(device, torch.float64)
        x = torch.cat((x, x.new_ones(len(x), 1)), dim=1)
        sums[name] = sums.get(name, 0) + x.T @ x

    _run(model, inputs, names, add, sums)
    for name, value in sums.items():
        tokens, width = value[-1, -1], len(value) - 1
        if tokens <= width or not value.isfinite().all() or not value[:-1, :-1].any():
            raise ValueError(
                f"{name}: {int(tokens)} tokens (inputs=) cannot determine the weights of {width}"
                " inputs; give some thousands more, whose activations are finite and not all 0"
            )
    return {name: value / value[-1, -1] for name, value in sums.items()}


@torch.no_grad()
def _run(
    model: nn.Module,
    inputs: Batches,
    names: Collection[str],
    hook: Callable[..., None],
    results: Mapping[str, Any],
) -> None:
    """Runs the model on each batch, in evaluation mode. `hook(name, module, args, kwargs, output)`
    is called after each call of a named module and fills `results`; raises where it was not called.
    """
    batches = [inputs] if isinstance(inputs, Mapping | Tensor) else inputs
    with ExitStack() as undo:
        for name in names:
            module = model.get_submodule(name)
            handle = module.register_forward_hook(partial(hook, name), with_kwargs=True)
            undo.enter_context(handle)
        for module in model.modules():
            undo.callback(setattr, module, "training", module.training)
        model.eval()
        for batch in batches:
            if isinstance(batch, Mapping):
                model(**batch)
            else:
                model(batch)
    for name in names:
        if name not in results:
            raise ValueError(f"{name} was not run; give inputs (inputs=) that reach it")
