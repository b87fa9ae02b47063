"""Geometry from a resolved source: the table's rules applied, and every tensor's shape held against them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from headmaps.architectures.entry import value_of
from headmaps.architectures.model import Model, understood
from headmaps.architectures.names import tensors_needed
from headmaps.architectures.table import model_of
from headmaps.errors import ArchitectureError
from headmaps.geometry import Geometry, Position, QKNorm, check_heads
from headmaps.layouts import LAYOUTS, Sizes, d_head_of

PLAIN = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")
"""Stored types that are numbers by themselves."""
BIAS_NAMES = {
    "q_bias": ["b_Q"],
    "k_bias": ["b_K"],
    "v_bias": ["b_V"],
    "o_bias": ["b_O"],
    "qkv_bias": ["b_Q", "b_K", "b_V"],
}
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Stored:
    """The needed tensors of a source: role -> name by layer, and each name's type and shape."""

    by_layer: dict[int, dict[str, str]]
    shared: dict[str, str]
    entries: dict[str, Mapping[str, Any]]

    def shape(self, name: str) -> Shape:
        """Rows first, as stored."""
        return tuple(self.entries[name]["shape"])

    def of_roles(self, roles: Mapping[str, Any]) -> list[tuple[int, str, str]]:
        """(layer, role, name) of those roles, in every layer."""
        return [
            (layer, role, name)
            for layer, found in self.by_layer.items()
            for role, name in found.items()
            if role in roles
        ]


def roles_of_source(source: Mapping[str, Any]) -> dict[str, Any]:
    """What `tensors_needed` says of a source.json: role -> tensor name, by layer and shared.

    Raises:
        ArchitectureError, CheckpointError: as `tensors_needed`.
    """
    names = {name for tensors in source["layers"].values() for name in tensors} | set(source.get("shared") or {})
    layers = sorted(int(layer) for layer in source["layers"])
    return tensors_needed(source["config"], names, layers, source.get("stack"), source.get("tower"))


def is_transposed(source: Mapping[str, Any]) -> bool:
    """Whether the projections are stored (in, out), as transformers' Conv1D has them."""
    return model_of(source["config"], source.get("stack"), source.get("tower")).entry.transposed


@understood()
def geometry_of(source: Mapping[str, Any]) -> Geometry:
    """The geometry of a resolved checkpoint, every shape checked.

    Args:
        source: source.json as a dict.

    Raises:
        ArchitectureError: an unknown model type, head numbers that do not divide, or a tensor of another shape.
        CheckpointError: a tensor is missing.
    """
    roles = roles_of_source(source)
    entries = {name: entry for tensors in source["layers"].values() for name, entry in tensors.items()}
    stored = Stored(roles["layers"], roles["shared"], entries | dict(source.get("shared") or {}))
    model = replace(
        model_of(source["config"], source.get("stack"), source.get("tower")), names=frozenset(stored.entries)
    )
    check_heads(model.model_type, model.n_heads, model.n_kv_heads)
    model = replace(model, d_head=_d_head(model, stored))
    geometry = _geometry(model, sorted(stored.by_layer), stored)
    _check_shapes(geometry, model, stored)
    return geometry


def _d_head(model: Model, stored: Stored) -> int:
    """d_head: the config's where the family names it there, else what the tensors' rows say."""
    layout = value_of(model.entry.layout, model)
    if layout == "mla":
        return sum(model.number(key, key) for key in ("qk_nope_head_dim", "qk_rope_head_dim"))
    if model.explicit_d_head is not None:
        return model.explicit_d_head
    role = "q" if "q" in value_of(model.entry.modules, model) else "qkv"
    name = next(iter(stored.by_layer.values()))[role]
    shape = stored.shape(name)
    rows = shape[-1 if model.entry.transposed else 0] if shape else 0
    d_head = d_head_of(layout, model.n_heads, model.n_kv_heads, role, rows)
    if not d_head:
        raise ArchitectureError(
            f"{name} has shape {list(shape)}, which {model.n_heads} query heads on {model.n_kv_heads} key/value heads "
            f"cannot share in the layout {layout!r}",
            where=name,
            do="check the numbers of heads in the checkpoint's config.json",
        )
    return d_head


def _geometry(model: Model, layers: list[int], stored: Stored) -> Geometry:
    entry = model.entry
    mla = value_of(entry.layout, model) == "mla"
    norm = value_of(entry.norm, model)
    epsilon = float(model.get(*entry.epsilon, default=norm.epsilon))
    qk_norm = value_of(entry.qk_norm, model)
    dtype = _dtype(stored, value_of(entry.modules, model))
    scale = entry.scale(model)
    windows = entry.windows(model)
    windows = [windows[layer] for layer in layers] if windows else []
    geometry = Geometry(
        model_type=model.model_type,
        layout=value_of(entry.layout, model),
        layers=layers,
        n_layers=model.n_layers,
        d_model=model.d_model,
        n_heads=model.n_heads,
        n_kv_heads=model.n_kv_heads,
        d_head=model.d_head,
        d_head_v=model.number("value head dimension", "v_head_dim") if mla else model.d_head,
        dtype=dtype,
        scale=_of_layers(scale, layers) if isinstance(scale, list) else scale,
        position=_position(entry.position(model), layers),
        norm=replace(norm, epsilon=epsilon),
        matrices=["value", "qk_nope", "qk_rope"] if mla else ["value", "qk"],
        d_head_rope=model.number("rotated head dimension", "qk_rope_head_dim") if mla else None,
        d_source=model.d_model if model.stack == "cross" else None,
        qk_norm=replace(qk_norm, epsilon=epsilon) if qk_norm else None,
        biases=_biases(stored),
        softcap=model.get(entry.softcap) if entry.softcap else None,
        windows=windows if any(windows) else [],
        sinks=entry.sinks,
        gate=entry.gate,
        clip=entry.clip(model),
        causal=bool(value_of(entry.causal, model)),
        parallel=bool(value_of(entry.parallel, model)),
        stack=model.stack,
        tower=model.tower,
        quantised=None if all(part in PLAIN for part in dtype.split("+")) else dtype,
    )
    return replace(geometry, notes=[*value_of(entry.notes, model), *_notes(geometry)])


def _of_layers(values: list[float], layers: list[int]) -> float | list[float]:
    chosen = [values[layer] for layer in layers]
    return chosen[0] if len(set(chosen)) == 1 else chosen


def _position(position: Position, layers: list[int]) -> Position:
    """Only what the chosen layers use; one variant for all of them is called `default`."""
    variants = {layer: position.variant_of_layer[layer] for layer in layers} if position.variant_of_layer else {}
    used = {name: position.rotary[name] for name in dict.fromkeys(variants.values()) if name is not None}
    if not variants:
        return position
    if not used:
        return replace(position, scheme="none", rotary={}, variant_of_layer={})
    return replace(position, rotary=used, variant_of_layer=variants)


def _dtype(stored: Stored, modules: Mapping[str, str]) -> str:
    """The stored types of the projections, joined by +."""
    return "+".join(sorted({str(stored.entries[name]["dtype"]) for _, _, name in stored.of_roles(modules)}))


def _biases(stored: Stored) -> list[str]:
    roles = {role for found in stored.by_layer.values() for role in found}
    names = {bias for role in roles for bias in BIAS_NAMES.get(role, [])}
    return sorted(names, key=["b_Q", "b_K", "b_V", "b_O"].index)


def _notes(g: Geometry) -> list[str]:
    """What follows from the geometry for a reader of the results."""
    notes = []
    if g.qk_norm:
        over = "each head" if g.qk_norm.span == "head" else "all heads together"
        notes.append(f"queries and keys are normed over {over} before they meet: the score is not exactly bilinear")
    if g.softcap:
        notes.append(f"scores pass {g.softcap:g} tanh(score / {g.softcap:g})")
    if g.clip:
        notes.append(f"queries, keys and values are clipped to [-{g.clip:g}, {g.clip:g}]")
    if g.norm.place == "post":
        notes.append("post-norm: what attention reads was normed after the previous addition; no norm is folded")
    if g.position.scheme == "relative":
        notes.append("a learned bias per head and distance is added to the scores: not part of the matrices")
    if len(g.layers) < g.n_layers:
        notes.append(f"{len(g.layers)} of the {g.n_layers} layers are looked at")
    if g.quantised:
        notes.append(
            f"weights were read from the quantised format {g.quantised}: single vectors are the quantised model's"
        )
    return notes


def _check_shapes(g: Geometry, model: Model, stored: Stored) -> None:
    expected = _mla_shapes(g, model) if g.layout == "mla" else _shapes(g, model.entry.transposed)
    expected |= _norm_shapes(g)
    shared = [(-1, role, name) for role, name in stored.shared.items()]
    for _, role, name in [*stored.of_roles({role: 0 for found in stored.by_layer.values() for role in found}), *shared]:
        allowed = expected.get(role.split(".")[0], [])
        shape = stored.shape(name)
        if allowed and shape not in allowed:
            raise ArchitectureError(
                f"the tensor {name} has shape {list(shape)}",
                where=name,
                expected=" or ".join(str(list(right)) for right in allowed)
                + f" (d_model {g.d_model}, d_head {g.d_head}, {g.n_heads} query and {g.n_kv_heads} key/value heads)",
                do="check that config.json belongs to these weights",
            )


def _shapes(g: Geometry, transposed: bool) -> dict[str, list[Shape]]:
    rows = LAYOUTS[g.layout](Sizes(g.n_heads, g.n_kv_heads, g.d_head, g.d_head_v)).stored_rows()
    weights = {role: (n, g.d_model) for role, n in rows.items()} | {"o": (g.d_model, g.n_heads * g.d_head_v)}
    shapes: dict[str, list[Shape]] = {}
    for role, shape in weights.items():
        shapes[role] = [shape[::-1] if transposed else shape]
        shapes[f"{role}_bias"] = [shape[:1]]
    return shapes


def _mla_shapes(g: Geometry, model: Model) -> dict[str, list[Shape]]:
    rope = g.d_head_rope or 0
    latent = model.number("key/value rank", "kv_lora_rank")
    shapes: dict[str, list[Shape]] = {
        "kv_a": [(latent + rope, g.d_model)],
        "kv_a_norm": [(latent,)],
        "kv_b": [(g.n_heads * (g.d_head - rope + g.d_head_v), latent)],
        "o": [(g.d_model, g.n_heads * g.d_head_v)],
        "q": [(g.n_heads * g.d_head, g.d_model)],
    }
    if (query := model.get("q_lora_rank")) is not None:
        shapes |= {"q_a": [(query, g.d_model)], "q_a_norm": [(query,)], "q_b": [(g.n_heads * g.d_head, query)]}
    return shapes


def _norm_shapes(g: Geometry) -> dict[str, list[Shape]]:
    wide: list[Shape] = [(g.d_model,)]
    shapes = dict.fromkeys(("norm_weight", "norm_bias", "post_norm_weight", "post_norm_bias"), wide)
    shapes["sinks"] = [(g.n_heads,)]
    if g.position.relative:
        shapes["relative_bias"] = [(g.position.relative["buckets"], g.n_heads)]
    if g.qk_norm:
        for role, n in (("q_norm", g.n_heads), ("k_norm", g.n_kv_heads)):
            shapes[role] = shapes[f"{role}_bias"] = _qk_norm_shapes(g.qk_norm, n, g.d_head)
    return shapes


def _qk_norm_shapes(norm: QKNorm, n: int, d_head: int) -> list[Shape]:
    """One gain for all heads, or one a head; over the full width, all heads' in a row."""
    return [(n * d_head,)] if norm.span == "width" else [(d_head,), (n, d_head)]
