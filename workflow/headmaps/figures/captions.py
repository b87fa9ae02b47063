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


def identity(model: str, source: Mapping[str, Any]) -> str:
    """Whose weights: the model's name with its package and version, or repository and commit."""
    what = source.get("repo") or source.get("package")
    named = " ".join(str(part) for part in (what, source.get("version")) if part)
    parts = [named] if named and named != model else []
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


def undetermined(count: int, pairs: int) -> str:
    """The warning that single vectors are not determined, or nothing."""
    if count == 0:
        return ""
    return (
        f" {count} of {number(pairs, 'singular value')} lie so close to a neighbour that the rounding of the stored "
        "weights mixes them: their single vectors are determined only up to rotations among themselves."
    )


def number(count: int, noun: str) -> str:
    """`1 head`, `2 heads`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def listed(names: Sequence[object], most: int = 12) -> str:
    """`1, 2 and 3`, cut after `most`."""
    texts = [str(name) for name in names]
    if len(texts) > most:
        return ", ".join(texts[:most]) + f" and {len(texts) - most} more"
    return " and ".join([", ".join(texts[:-1]), texts[-1]]) if len(texts) > 1 else "".join(texts)


NO_SELF = "no head has a self here: the caption says why"


def no_self(geometry: Mapping[str, Any]) -> str:
    """Why a figure is empty: no head has a self."""
    if "cross" in str(geometry.get("stack") or ""):
        return (
            "Cross-attention reads one stream and writes to another: input and output vectors live in different "
            "spaces, so that overlap, self, rotation and ortho do not exist."
        )
    return "No head has a singular value above zero here: there is nothing to draw."
