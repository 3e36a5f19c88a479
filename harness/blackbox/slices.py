"""Slices of a model. A slice has the tensors outside the layers, and either one layer as layer 0 or
the first layers.

Metadata arrays with an element for each layer keep the elements of these layers. A layer's role may
depend on its number (every sixth layer sees all tokens, or the first few have no experts). Then
other keys define the role. `roles.py` checks in llama.cpp's graphs that the slice's layer equals
the model's layer.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from lockstep.engine.errors import Unsupported
from lockstep.engine.gguf.file import GgufFile, Value
from lockstep.harness.asking.facts import what_it_is, why_no_run
from lockstep.harness.blackbox.changes import Change, ones, times, zero
from lockstep.harness.blackbox.rewriting import Recipe
from lockstep.harness.sites import ATTENTION_OUT, ENDS_OF_HALVES, FFN_OUT, IN_A_LAYER, is_one_of
from lockstep.harness.synth.gguf_writer import Typed

SCALES = ("layer_output_scale",)  # gemma4 multiplies the residual after a layer by this tensor
POST_NORMS = {  # norms, and the tensors whose output they read; grok uses other names
    "post_attention_norm": ATTENTION_OUT,
    "attn_output_norm": ATTENTION_OUT,
    "post_ffw_norm": tuple(name for name in FFN_OUT if name != "proj"),
    "layer_output_norm": FFN_OUT,
    "post_norm": ("proj",),
}
# bloom has a norm after the embeddings
EMBEDDINGS = ("token_embd", "position_embd", "token_embd_norm")
SMALL = 2.0**-10  # size of activations: eps is large relative to their squares
# arrays that may have as many entries as layers by chance: dimensions, n-gram tables, classes,
# tokens, a target
NOT_BY_LAYER = re.compile(
    r"\.(rope\.dimension_sections|ple\..+|classifier\.output_labels|adapters\..+|target_layers)$"
)
# gemma3n and gemma4: one tensor for all layers, with rows or columns layer after layer
ROWS, COLUMNS = ("per_layer_model_proj.weight",), ("per_layer_token_embd.weight",)
PER_LAYER = "embedding_length_per_layer_input"
# number of last layers that use the keys and values of earlier layers
SHARED = "attention.shared_kv_layers"
COUNT, DENSE, MTP = "block_count", "leading_dense_block_count", "nextn_predict_layers"
WINDOW, PERIOD = "attention.sliding_window", "attention.sliding_window_pattern"
FULL = "full_attention_interval"
NO_END = 1 << 20  # length of a window that no text fills
# Keys that give a model of one layer a certain kind of layer: the kind of the first layer; a window
# that hides nothing; no window; a window; full attention where other layers are recurrent.
ROLES: tuple[Mapping[str, int], ...] = (
    *({}, {WINDOW: NO_END}, {WINDOW: 0}, {PERIOD: 0}, {PERIOD: 1}, {FULL: 1}),
)
# architectures whose layers change the residual by other tensors too
ADD_OTHERWISE = ("deepseek4", "gemma3n", "minimax-01", "qwen4exp", "refact")
# architectures whose layers mix the first layer's values with their own
READ_OTHERS = ("rwkv7", "arwkv7")
# architectures whose layers differ only in weights
ALIKE = ("llama", "qwen2", "qwen3", "gpt2", "phi2")


def architecture(file: GgufFile) -> str:
    return str(file.metadata["general.architecture"].data)


def n_layers(file: GgufFile) -> int:
    """Return the number of layers. Raises Unsupported, with the reason, if no slice of the model
    can be made."""
    arch, kind = what_it_is(file)
    if reason := why_no_run(arch, kind, len(file.tensors)):
        raise Unsupported(reason)
    if any(name.startswith(("enc.blk.", "dec.blk.")) for name in file.tensors):
        raise Unsupported("encoder and decoder have separate layers, so there are no slices")
    if f"{arch}.{COUNT}" not in file.metadata:
        raise Unsupported(f"the file has no {arch}.{COUNT}, so there are no slices")
    return number_in(file, COUNT) - number_in(file, MTP)


def number_in(file: GgufFile, key: str) -> int:
    """Return the value of an architecture's key, or 0 if the key is missing. Raises Unsupported if
    the value is not an integer."""
    name = f"{architecture(file)}.{key}"
    found = file.metadata.get(name)
    if found is not None and type(found.data) is not int:
        raise Unsupported(f"{name} is not one number, so there are no slices")
    return 0 if found is None else int(found.data)


def slice_of(
    file: GgufFile,
    layer: int,
    *,
    role: Mapping[str, int] | None = None,
    changes: Mapping[str, Change] | None = None,
    stored: bool = False,
) -> Recipe:
    """Return the recipe of a slice with one layer. changes: the changes, by tensor name in the
    slice, whose layer is 0; stored: True to keep the types of matrices."""
    names = {}
    for name in file.tensors:
        inside = IN_A_LAYER.fullmatch(name)
        if inside is None:
            names[name] = name
        elif int(inside[1]) == layer:
            names[f"blk.0.{inside[2]}"] = name
    return Recipe(
        names=names,
        keys=keys_of_one(file, layer, role or {}),
        changes=changes or {},
        stored=frozenset(names if stored else ()),
    )


def first_layers(
    file: GgufFile, n: int, keys: Mapping[str, Typed | Value] = MappingProxyType({})
) -> Recipe:
    """Return the recipe for the model's first n layers, which keep their numbers and matrix types.
    keys: replace keys of the model."""
    names = {}
    for name in file.tensors:
        inside = IN_A_LAYER.fullmatch(name)
        if inside is None or int(inside[1]) < n:
            names[name] = name
    total = n_layers(file)
    return Recipe(
        names=names,
        keys={**keys_of_layers(file, range(n)), **keys},
        stored=frozenset(names),
        rows={k: np.arange(file.tensors[k].ne[-1] // total * n) for k in names if k in ROWS},
        columns={k: width // total * n for k, width in by_layer(file).items()},
    )


def by_layer(file: GgufFile) -> dict[str, int]:
    """Return the widths of tensors that have columns for each layer. The result is empty for
    qwen4exp, where all layers share the same columns."""
    one = file.metadata.get(f"{architecture(file)}.{PER_LAYER}")
    widths = {name: file.tensors[name].ne[0] for name in COLUMNS if name in file.tensors}
    return {name: w for name, w in widths.items() if one is None or w != one.data}


def keys_of_one(file: GgufFile, layer: int, role: Mapping[str, int]) -> Mapping[str, Typed | Value]:
    keys = keys_of_layers(file, range(layer, layer + 1))
    return {
        **keys,
        **{f"{architecture(file)}.{key}": ("U32", number) for key, number in role.items()},
    }


def keys_of_layers(file: GgufFile, layers: range) -> dict[str, Typed | Value]:
    """Return the keys for a model of only these layers."""
    arch, n = architecture(file), number_in(file, COUNT)
    found: dict[str, Typed | Value] = {f"{arch}.{COUNT}": ("U32", len(layers))}
    for key in file.metadata:
        if not key.startswith(f"{arch}.") or NOT_BY_LAYER.search(key):
            continue
        value = file.metadata[key]
        if value.element is not None and len(value.data) == n:
            found[key] = replace(value, data=value.data[layers.start : layers.stop])
    if f"{arch}.{DENSE}" in file.metadata:
        dense = range(number_in(file, DENSE))
        found[f"{arch}.{DENSE}"] = ("U32", sum(layer in dense for layer in layers))
    if f"{arch}.{SHARED}" in file.metadata:
        own = range(n - number_in(file, SHARED))
        found[f"{arch}.{SHARED}"] = ("U32", sum(layer not in own for layer in layers))
    if f"{arch}.{MTP}" in file.metadata:
        found[f"{arch}.{MTP}"] = ("U32", 0)
    return found


def roles_of(file: GgufFile) -> Iterator[Mapping[str, int]]:
    """Yield metadata that may give a layer its role, the likeliest first. Only keys that replace
    keys of the file are included."""
    arch = architecture(file)
    # an architecture may have a fixed period, but the window is in the file
    wanted = {PERIOD: WINDOW}
    for role in ROLES:
        held = [file.metadata.get(f"{arch}.{wanted.get(key, key)}") for key in role]
        if all(value is not None and value.element is None for value in held):
            yield role


def mute_other_layers(file: GgufFile, layers: Collection[int]) -> Recipe:
    """Return the recipe for the whole model, in which all layers except these are muted: they add
    nothing and multiply by one."""
    changes: dict[str, Change] = {}
    for name in file.tensors:
        inside = IN_A_LAYER.fullmatch(name)
        if inside is None or int(inside[1]) in layers:
            continue
        if is_one_of(inside[2], ENDS_OF_HALVES):
            changes[name] = zero
        elif is_one_of(inside[2], SCALES):
            changes[name] = ones
    return Recipe(names={name: name for name in file.tensors}, changes=changes)


def at_its_place(file: GgufFile, layer: int, n: int = 0) -> Recipe:
    return at_their_places(file, (layer,), n)


def at_their_places(file: GgufFile, layers: Collection[int], n: int = 0) -> Recipe:
    """Return the recipe for a model in which all other layers are muted. Only the matrices of these
    layers, and tensors outside the layers, become F32. n: the number of first layers to keep; 0 for
    all."""
    recipe = mute_other_layers(file, layers)
    if n:
        cut = first_layers(file, n)
        changes = {name: recipe.changes[name] for name in cut.names if name in recipe.changes}
        recipe = replace(cut, changes=changes)
    of_others = {
        name
        for name in recipe.names
        if (inside := IN_A_LAYER.fullmatch(name)) and int(inside[1]) not in layers
    }
    return replace(recipe, stored=frozenset(of_others))


def small(
    file: GgufFile,
    layer: int | None = None,
    role: Mapping[str, int] | None = MappingProxyType({}),
) -> Recipe:
    """Return a recipe in which all inputs of norms are so small that eps decides the result.

    With larger inputs the noise hides a wrong eps.
    """
    whole = whole_or_layer(file, layer, role)
    changes = made_small(set(whole.names) - whole.stored)
    return replace(whole, changes={**changes, **whole.changes})


def whole_or_layer(file: GgufFile, layer: int | None, role: Mapping[str, int] | None) -> Recipe:
    """Return the recipe of the whole model, of the slice of one layer, or of the layer at its place
    if `role` is None."""
    if layer is None:
        return Recipe(names={name: name for name in file.tensors})
    return at_its_place(file, layer) if role is None else slice_of(file, layer, role=role)


def made_small(names: Collection[str]) -> dict[str, Change]:
    """Return changes that shrink the additions to the residual, and the queries or keys that go
    through a norm (attn_q before attn_q_norm)."""
    changes: dict[str, Change] = {}
    stems: dict[str, set[str]] = {}  # by layer
    for found in filter(None, map(IN_A_LAYER.fullmatch, names)):
        stems.setdefault(found[1], set()).add(found[2].rsplit(".", 1)[0])
    for name in names:
        inside = IN_A_LAYER.fullmatch(name)
        # bert adds token types to the embeddings
        adds: tuple[str, ...] = (*EMBEDDINGS, "token_types")
        if inside is not None:
            own = stems[inside[1]]
            adds = (*what_adds(own), *(stem for stem in own if f"{stem}_norm" in own))
        if is_values(name) and is_one_of(inside[2] if inside else name, adds):
            changes[name] = times(SMALL)
    return changes


def what_adds(stems: Collection[str]) -> set[str]:
    """Return the tensors that determine a layer's additions to the residual. These are the norm
    after a half-layer, or the last matrix of the half-layer if there is no such norm."""
    posts = {post: parts for post, parts in POST_NORMS.items() if post in stems}
    if not {"ffn_norm", "post_ffw_norm"} & set(stems):
        # in gpt-oss and some others, this is the norm before the FFN
        posts.pop("post_attention_norm", None)
    normed = {part for parts in posts.values() for part in parts}
    return {*posts, *ATTENTION_OUT, *FFN_OUT} - normed


def what_attention_adds(stems: Collection[str]) -> set[str]:
    posts = {post for post, parts in POST_NORMS.items() if parts == ATTENTION_OUT}
    return what_adds(stems) & {*posts, *ATTENTION_OUT}


def without(file: GgufFile, layer: int, parts: Sequence[str]) -> dict[str, Change]:
    """Return changes that make these parts of the slice's layer add nothing, or multiply by one."""
    names = [name for name in within(file, layer) if is_one_of(name[6:], parts)]
    return {name: ones if is_one_of(name[6:], SCALES) else zero for name in names}


def within(file: GgufFile, layer: int) -> list[str]:
    """Return the layer's tensor names as they are in the slice."""
    prefix = f"blk.{layer}."
    return [f"blk.0.{n.removeprefix(prefix)}" for n in file.tensors if n.startswith(prefix)]


def reads_others(file: GgufFile) -> bool:
    """Return True if layers read keys or values of other layers, which may be muted."""
    return architecture(file) in READ_OTHERS or bool(number(file, SHARED, 0))


def is_values(name: str) -> bool:
    """Return True for the names of weights and biases. The factor that NVFP4 stores for a matrix is
    neither, because scaling it would scale the matrix a second time."""
    return name.endswith((".weight", ".bias"))


def number(file: GgufFile, key: str, default: Any = None) -> Any:
    """Return the value of an architecture's key; the first value if the key has a value for each
    layer. default: the value if the key is missing."""
    found = file.metadata.get(f"{architecture(file)}.{key}")
    if found is None:
        return default
    return found.data if found.element is None else found.data[0]
