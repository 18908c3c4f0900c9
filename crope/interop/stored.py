"""A complexified model with its halved weights on disk, and the layers of one in a dense model."""

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from crope.interop.dense import VARIANT, accept_dense, write_dense_checkpoints
from crope.interop.fused import separate_layers
from crope.interop.layers import check_replaceable, check_untouched, pairs_of
from crope.model.complex_linear import ComplexLinear

INDEX = f"model.safetensors.index.{VARIANT}.json"  # sorts behind the shards
LAYOUT = "complex_layers"  # key of the layout in the metadata of the weights' files


def layout(model: nn.Module) -> dict[str, dict[str, Any]]:
    """Name -> arguments of each ComplexLinear: what `restore` needs besides the state dict."""
    layers = {}
    for name, layer in model.named_modules():
        if type(layer) is ComplexLinear:  # no subclass, which `restore` could not tell apart
            check_untouched(name, layer)
            layers[name] = {"pairing": layer.pairing, "head_dim": layer.head_dim}
    return layers


def restore(model: nn.Module, layers: Mapping[str, Mapping[str, Any]]) -> None:
    """Gives a dense model the layers of a `layout`, in place; their weights come from the state
    dict of the complexified model.

    Raises ValueError if one of these layers is no `nn.Linear` of such heads and such a rotation.
    """
    if any(name not in dict(model.named_modules()) for name in layers):
        separate_layers(model)
    modules, restored = dict(model.named_modules()), {}
    for name, pairs in layers.items():
        if name not in modules:
            raise ValueError(f"{name} is missing; restore needs the dense model of this layout")
        layer = {name: modules[name]}
        check_replaceable(model, layer)
        pairs = pairs_of(model, layer, **pairs)[name]
        restored[name] = ComplexLinear.from_linear(layer[name], **pairs)
    for name, new in restored.items():
        replace(model, name, new)


def replace(model: nn.Module, name: str, new: ComplexLinear) -> None:
    """Sets the layer, so that dense checkpoints of the model can be written and loaded again."""
    new.register_load_state_dict_pre_hook(accept_dense)
    write_dense_checkpoints()
    model.set_submodule(name, new)


def save(model: Any, folder: str | Path, **options: Any) -> None:
    """Saves a complexified model of `transformers` with its halved weights; `load` opens it.

    The weights are model.complex.safetensors, or shards of it, which `from_pretrained` does not
    find. Those of an earlier `save` into this folder are removed once the new ones are complete.
    options: those of `save_pretrained`, but push_to_hub.

    Raises ValueError if no layer is a ComplexLinear, if `load` could not build the model (its class
    is not one of `transformers`, adapters, quantised layers), or if the folder has dense weights.
    """
    layers, folder = layout(model), Path(folder)
    if not layers:
        raise ValueError("the model has no ComplexLinear; save it with save_pretrained")
    if options.pop("push_to_hub", False):
        raise ValueError("save writes a folder only; upload it by huggingface_hub.upload_folder")
    _check_loadable(model, layers)
    _check_no_dense_weights(folder)
    from safetensors.torch import load as parse
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="saving-", dir=folder) as text:
        new = Path(text)
        model.save_pretrained(new, variant=VARIANT, **options)
        metadata = {"format": "pt", LAYOUT: json.dumps(layers)}
        for file in new.glob("*.safetensors"):
            save_file(parse(file.read_bytes()), file, metadata=metadata)
        names = sorted(file.name for file in new.iterdir())
        # Until the last, so that no index is beside shards of two saves.
        (folder / INDEX).unlink(missing_ok=True)
        for name in names:
            (new / name).replace(folder / name)
        for file in folder.glob(f"model.*{VARIANT}*"):
            if file.name not in names:
                file.unlink()


def _check_loadable(model: Any, layers: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises unless the model has the tensors that `load` would expect."""
    import transformers

    architecture = type(model)
    if getattr(transformers, architecture.__name__, None) is not architecture:
        raise ValueError(
            f"{architecture.__name__} is no class of transformers, so that load could not build it;"
            " merge adapters (merge_and_unload), or store layout(model) and the state dict instead"
        )
    with torch.device("meta"):
        expected: Any = architecture(model.config)
    restore(expected, layers)
    different = expected.state_dict().keys() ^ model.state_dict().keys()
    if different:
        raise ValueError(
            "load could not open this model; merge adapters (merge_and_unload), and save before"
            f" quantising: {', '.join(sorted(different))}"
        )


def _check_no_dense_weights(folder: Path) -> None:
    files = folder.glob("*model[.-]*")  # model.safetensors, pytorch_model-00001-of-00002.bin
    dense = sorted(file for file in files if f".{VARIANT}" not in file.name)
    if dense:
        raise ValueError(
            f"{dense[0]}: from_pretrained would open these dense weights; keep them and the halved"
            " ones in folders of their own"
        )


def load(folder: str | Path, **options: Any) -> Any:
    """The complexified model that `save` wrote to this folder.

    options: those of `from_pretrained` (dtype, device_map, ...). Raises ValueError if the folder
    lacks such weights, has dense ones too, or if a tensor is missing, too many or of another shape.
    """
    import transformers
    from safetensors import SafetensorError

    folder = Path(folder)
    _check_no_dense_weights(folder)
    try:
        layers = _read_layout(folder)
        name = transformers.AutoConfig.from_pretrained(folder).architectures[0]
        architecture = getattr(transformers, name)

        class Complexified(architecture):  # type: ignore[misc, valid-type]
            """Has its complex layers when from_pretrained looks for the weights."""

            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **kwargs)
                restore(self, layers)

        # By both transformers finds the names that the tensors of this class have in files.
        Complexified.__name__, Complexified.__module__ = name, architecture.__module__
        options |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
        model, found = Complexified.from_pretrained(folder, variant=VARIANT, **options)
        wrong = {kind: sorted(map(str, tensors)) for kind, tensors in found.items() if tensors}
        if wrong:
            raise ValueError(f"not the weights of this model: {wrong}")
    # Whatever is wrong with a file; AttributeError: a class that transformers does not have.
    except (AttributeError, LookupError, OSError, SafetensorError, TypeError, ValueError) as error:
        raise ValueError(
            f"{folder}: missing or damaged ({error}); save the model again by crope.adapt.save"
        ) from error
    model.__class__ = architecture  # `save_pretrained` writes the name of the class
    return model


def _read_layout(folder: Path) -> dict[str, dict[str, Any]]:
    """The layout in the metadata of the weights, or in the file that earlier versions wrote."""
    from safetensors import safe_open

    text = ""
    for file in sorted(folder.glob(f"model.{VARIANT}*.safetensors")):
        with safe_open(file, "pt") as weights:
            text = (weights.metadata() or {}).get(LAYOUT, "")
    text = text or (folder / f"{LAYOUT}.json").read_text(encoding="utf-8")
    layers: dict[str, dict[str, Any]] = json.loads(text)
    return layers
