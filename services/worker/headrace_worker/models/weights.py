"""Filling a model: every slot exactly once, every tensor accounted for, streamed one tensor at a time."""

from collections.abc import Callable, Mapping

import torch

from headrace_worker.kernels.gemm import assert_row_invariance
from headrace_worker.layers.embedding import VocabParallelHead
from headrace_worker.layers.linear import ColumnParallelLinear, RowParallelLinear
from headrace_worker.layers.weight_slot import WeightSlot, collect_slots, weight_layers
from headrace_worker.models.errors import CheckpointError
from headrace_worker.models.llama import LlamaForCausalLM
from headrace_worker.models.weight_source import TensorInfo, WeightSource

HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
_BUFFER_SUFFIXES = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")
"""Buffers that old exporters saved among the weights; they are recomputed, never loaded."""


def fill_model(
    model: LlamaForCausalLM, source: WeightSource, progress: Callable[[float], None], meet: Callable[[], None]
) -> None:
    """Load every weight, then let the layers pack theirs. `progress` gets the share of bytes read, 0 to 1.

    `meet` is called in between: ranks that share a layer's inputs pack it together.

    Raises CheckpointError for missing or unexpected tensors, wrong shapes, and a head that is absent but not tied.
    """
    tensors = dict(source.tensors())
    slots = collect_slots(model)
    if model.config.tie_embeddings and HEAD in slots:  # a last stage that has no embedding to tie its head to
        slots[EMBEDDING] = slots.pop(HEAD)
    _drop_tied_head(model, source, tensors)
    _check_names(slots, tensors, _names_elsewhere(model, slots))
    total = sum(tensors[name].num_bytes for name in slots)
    done = 0
    with torch.no_grad():
        for name, slot in sorted(slots.items(), key=lambda item: (tensors[item[0]].file, item[0])):
            slot.fill(source.read(name, slot.region))
            done += tensors[name].num_bytes
            progress(done / total)
        slots.clear()  # they hold the unpacked weights
        meet()
        for _, layer in weight_layers(model):
            layer.pack()


def _drop_tied_head(model: LlamaForCausalLM, source: WeightSource, tensors: dict[str, TensorInfo]) -> None:
    """A tied model may carry a copy of its embedding as head; a head that differs means that it is not tied."""
    if not model.config.tie_embeddings or HEAD not in tensors:
        return
    info = tensors.pop(HEAD)
    if EMBEDDING in tensors and not torch.equal(source.read(HEAD), source.read(EMBEDDING)):
        raise CheckpointError(info.file, f"{HEAD} differs from the embedding, but the configuration ties them")


def _names_elsewhere(model: LlamaForCausalLM, slots: Mapping[str, WeightSlot]) -> set[str]:
    """What the other pipeline stages load: layers that are named like ours, and the ends of the model."""
    own = list(model.model.layers)
    prefix = f"model.layers.{own[0]}."
    layers = [f"model.layers.{layer}." for layer in range(model.config.num_layers) if str(layer) not in own]
    ends = (EMBEDDING, FINAL_NORM) if model.config.tie_embeddings else (EMBEDDING, FINAL_NORM, HEAD)
    names = {layer + name.removeprefix(prefix) for layer in layers for name in slots if name.startswith(prefix)}
    return names | {name for name in ends if name not in slots}


def _check_names(slots: Mapping[str, WeightSlot], tensors: dict[str, TensorInfo], elsewhere: set[str]) -> None:
    for name in [name for name in tensors if name not in slots and name.endswith(_BUFFER_SUFFIXES)]:
        del tensors[name]
    missing = sorted(slots.keys() - tensors.keys())
    if HEAD in missing:
        raise CheckpointError(HEAD, "is absent, and the configuration does not tie it to the embedding")
    if missing:
        raise CheckpointError(missing[0], f"is in no file of the checkpoint ({len(missing)} tensors are missing)")
    unexpected = sorted(tensors.keys() - slots.keys() - elsewhere)
    if unexpected:
        file = tensors[unexpected[0]].file
        raise CheckpointError(file, f"{unexpected[0]} has no place in the model ({len(unexpected)} such tensors)")
    for name, slot in slots.items():
        if tensors[name].shape != slot.shape:
            shapes = f"{list(tensors[name].shape)}; the configuration asks for {list(slot.shape)}"
            raise CheckpointError(tensors[name].file, f"{name} has shape {shapes}")


def prove_invariance(model: LlamaForCausalLM) -> None:
    """Batch-invariant mode rests on how the library multiplies: check it here, once per weight shape."""
    kinds = ColumnParallelLinear | RowParallelLinear | VocabParallelHead
    packed = {tuple(m.weight.shape): m.weight for m in model.modules() if isinstance(m, kinds)}
    for weight in packed.values():
        assert_row_invariance(weight)
