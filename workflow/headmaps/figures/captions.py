"""What the captions say: whose weights, how treated, and what a point of each figure is. Text alone."""

from collections.abc import Mapping, Sequence
from typing import Any

MATRIX_NAMES = {
    "value": "value matrix",
    "qk": "QK matrix",
    "qk_nope": "QK matrix, part without positions",
    "qk_rope": "QK matrix, rotary part",
}

_SIDES = {
    "value": "W_V W_O: the input vectors uᵢ are read from the attended token, "
    "the output vectors vᵢ are written to the current token",
    "qk": "W_Q W_Kᵀ: the input vectors uᵢ belong to the query (current token), "
    "the output vectors vᵢ to the key (attended token)",
}

_TREATMENTS = {
    "raw": "weights as stored, no norm folded in",
    "gain": "gains of the norms folded into the weights",
    "gain_and_center": "gains of the norms folded into the weights, reads centred",
    "gain_and_center_write": "gains of the norms folded into the weights, reads and writes centred",
}

# Relative size of one rounding step of stored weights: half a unit in the last place, or half a step of the block's range
_ROUNDING = {
    "F64": 1.1e-16,
    "F32": 6.0e-8,
    "F16": 4.9e-4,
    "BF16": 3.9e-3,
    "F8_E4M3": 0.0625,
    "F8_E5M2": 0.125,
    "Q8_0": 3.9e-3,
    "Q6_K": 0.016,
    "Q5_0": 0.032,
    "Q5_1": 0.016,
    "Q5_K": 0.016,
    "Q4_0": 0.064,
    "Q4_1": 0.033,
    "Q4_K": 0.033,
    "Q3_K": 0.125,
    "Q2_K": 0.17,
}


def identity(model: str, source: Mapping[str, Any]) -> str:
    """Whose weights: the model's name with its package and version, or repository and commit."""
    what = source.get("repo") or source.get("package")
    parts = [str(what)] if what and what != model else []
    if source.get("version"):
        parts.append(str(source["version"]))
    revision, commit = source.get("revision"), source.get("commit")
    if revision and revision != commit:
        parts.append(f"revision {revision}")
    if commit:
        parts.append(f"commit {str(commit)[:12]}")
    elif source.get("sha256"):
        parts.append(f"sha256 {str(source['sha256'])[:12]}")
    if source.get("source") == "local":
        parts.append("local checkpoint")
    return f"{model} ({', '.join(parts)})" if parts else model


def matrix_name(matrix: str) -> str:
    """`value matrix`, `QK matrix`, ..."""
    return MATRIX_NAMES.get(matrix, matrix)


def sides(matrix: str) -> str:
    """The matrix as a product, and which token each side of it belongs to."""
    return _SIDES["value" if matrix == "value" else "qk"]


def treatment(layer_norm: str, geometry: Mapping[str, Any]) -> str:
    """How the norms were treated, and where the treatment has nothing to do."""
    text = _TREATMENTS.get(layer_norm, layer_norm)
    norm = geometry.get("norm") or {}
    if layer_norm == "raw":
        return text
    if norm.get("place") == "post":
        return f"{layer_norm}: nothing to fold, in this family the norm follows the block"
    if "center" in layer_norm and norm.get("kind") == "rms":
        return _TREATMENTS["gain"] + " (centring does not apply to RMSNorm)"
    return text


def frame(
    model: str, source: Mapping[str, Any], geometry: Mapping[str, Any], layer_norm: str, matrix: str | None = None
) -> str:
    """The sentence every caption starts with: model, revision, matrix, treatment, and quantisation where there is."""
    product = f"; {sides(matrix)}" if matrix else ""
    text = f"{identity(model, source)}; {treatment(layer_norm, geometry)}{product}."
    if geometry.get("quantised"):
        text += (
            f" The weights are stored quantised ({geometry['quantised']}): these are the heads of the quantised model; "
            "means over a head are close to the original's, single vectors need not be."
        )
    return text


def rounding(geometry: Mapping[str, Any]) -> float:
    """Relative size of a rounding step of the stored weights, from their dtype; that of bfloat16 if it is unknown."""
    stored = str(geometry.get("quantised") or geometry.get("dtype") or "").upper()
    return next((size for name, size in _ROUNDING.items() if stored.startswith(name)), _ROUNDING["BF16"])


def undetermined(count: int, pairs: int, step: float) -> str:
    """The warning that single vectors are not determined, or nothing."""
    if count == 0:
        return ""
    return (
        f" {count} of {pairs} singular values lie within {step:.2g} (relative) of a neighbour, which is what rounding "
        "the stored weights moves: their single vectors are determined only up to rotations among themselves."
    )


def listed(names: Sequence[object], most: int = 12) -> str:
    """`1, 2 and 3`, cut after `most`."""
    texts = [str(name) for name in names]
    if len(texts) > most:
        return ", ".join(texts[:most]) + f" and {len(texts) - most} more"
    return " and ".join([", ".join(texts[:-1]), texts[-1]]) if len(texts) > 1 else "".join(texts)


def no_self(geometry: Mapping[str, Any]) -> str:
    """Why a figure is empty: no head has a self."""
    if "cross" in str(geometry.get("stack") or ""):
        return (
            "Cross-attention reads one stream and writes another: input and output vectors live in different spaces, "
            "so that self, rotation and ortho do not exist."
        )
    return "No head has a singular value above zero here: there is nothing to draw."
