"""Norm treatments: how much of the norms around attention is folded into W_Q, W_K, W_V and W_O before a decomposition.

With P = I - 11^T/d and Gamma = diag(gain), a pre-norm block computes `q = norm(x) @ W_Q + b_Q`, where
`LayerNorm(x) = x @ P / std(x) @ Gamma + beta` and `RMSNorm(x) = x / rms(x) @ Gamma`. Hence

* `raw`: the weights as stored. W_V then stands after the gain while W_O writes in residual coordinates.
* `gain`: `W -> Gamma W` for everything that reads the normed stream and `b -> b + beta W`; where a norm follows the
  output projection, `W_O -> W_O Gamma_post`.
* `gain_and_center`: gain first, then `W -> P Gamma W`, since LayerNorm removes the mean of x before its gain.
* `gain_and_center_write`: also `W_O -> W_O P`: the next LayerNorm cannot see the mean of what a head writes.

An RMSNorm has no centring. Post-norm families (BERT) are left alone: there reads and writes share one stream.
Everything is folded in float64; `Folding` works on one matrix at a time, so that a wide layer need not be held twice.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headmaps.errors import ConfigError, NumericError
from headmaps.geometry import Geometry
from headmaps.heads import LayerHeads

Array = NDArray[Any]
Float = NDArray[np.float64]

TREATMENTS = ("raw", "gain", "gain_and_center", "gain_and_center_write")


@dataclass(frozen=True)
class Folding:
    """What one treatment does to one layer; apply it with `read`, `read_bias` and `write`. The default does nothing.

    Attributes:
        gain: (d,) gain of the norm that the heads read through, None where nothing is folded.
        shift: (d,) bias (beta) of that norm, None where there is none.
        center: whether the mean over d is removed from what is read.
        write_gain: (d,) gain of a norm between the output projection and the residual stream, None without one.
        center_output: whether that norm removes the mean first.
        center_write: whether the mean over d is removed from what is added to the stream.
        only_queries: cross-attention: keys and values do not read through this norm.
        notes: one sentence per thing that was folded, or was not and why.
    """

    gain: Float | None = None
    shift: Float | None = None
    center: bool = False
    write_gain: Float | None = None
    center_output: bool = False
    center_write: bool = False
    only_queries: bool = False
    notes: tuple[str, ...] = ()

    @property
    def reads(self) -> bool:
        """Whether W_Q, W_K and W_V change."""
        return self.gain is not None or self.center

    @property
    def writes(self) -> bool:
        """Whether W_O changes."""
        return self.write_gain is not None or self.center_output or self.center_write

    def read(self, W: Array) -> Float:
        """`P Gamma W` of one reading matrix W (d, r), float64."""
        folded = np.asarray(W, dtype=np.float64)
        if self.gain is not None:
            folded = self.gain[:, None] * folded
        if self.center:
            folded = folded - folded.mean(axis=0)
        return folded

    def read_bias(self, W: Array) -> Float:
        """`beta W` (r,), what the norm's bias adds to the bias of one reading matrix W (d, r)."""
        if self.shift is None:
            return np.zeros(W.shape[1])
        return self.shift @ np.asarray(W, dtype=np.float64)

    def write(self, W_O: Array) -> Float:
        """`W_O P Gamma_post P`, as far as they apply, of one writing matrix (r, d) or the output bias (d,), float64."""
        folded = np.asarray(W_O, dtype=np.float64)
        if self.center_output:
            folded = folded - folded.mean(axis=-1, keepdims=True)
        if self.write_gain is not None:
            folded = folded * self.write_gain
        if self.center_write:
            folded = folded - folded.mean(axis=-1, keepdims=True)
        return folded


def folding(heads: LayerHeads, geometry: Geometry, treatment: str) -> Folding:
    """Work out what `treatment` folds into one layer.

    Args:
        heads: the layer as stored; only its extras are read.
        geometry: the model's norms.
        treatment: one of `TREATMENTS`.

    Raises:
        ConfigError: the treatment is unknown.
        NumericError: a gain or a shift is missing or has the wrong length.
    """
    if treatment not in TREATMENTS:
        allowed = ", ".join(TREATMENTS)
        raise ConfigError(f"the norm treatment {treatment!r} is unknown", where="layer_norm", expected=allowed)
    norm = geometry.norm
    if treatment == "raw":
        return Folding()
    if norm.place == "post":
        return Folding(notes=("post-norm family: nothing folded, reads and writes share the normed stream",))
    if norm.place == "none" or norm.kind == "none":
        return Folding(notes=("no norm around attention: nothing folded",))
    reads_norm = norm.place in ("pre", "sandwich")
    layer = norm.kind == "layer"
    found = Folding(
        gain=_gain(heads, "norm_weight", geometry) if reads_norm and norm.weight else None,
        shift=_vector(heads, "norm_bias", geometry) if reads_norm and norm.bias else None,
        center=layer and reads_norm and treatment != "gain",
        write_gain=_gain(heads, "post_norm_weight", geometry) if norm.place in ("sandwich", "output") else None,
        # a LayerNorm on the attention's output takes the mean out itself, before its own gain
        center_output=layer and norm.place in ("sandwich", "output") and treatment != "gain",
        center_write=layer and treatment == "gain_and_center_write",
        only_queries=geometry.stack == "cross" or geometry.d_source is not None,
    )
    return replace(found, notes=tuple(_notes(found, geometry, treatment)))


def _notes(folding: Folding, geometry: Geometry, treatment: str) -> list[str]:
    """One sentence per thing folded, in the order of folding, or why it was not."""
    names = ("W_Q",) if folding.only_queries else ("W_Q", "W_K", "W_V")
    notes = []
    if folding.gain is not None:
        gain = "diag(1 + norm_weight)" if geometry.norm.plus_one else "diag(norm_weight)"
        notes += [f"{name} <- {gain} {name}" for name in names]
    elif geometry.norm.place == "output":
        notes.append("attention reads the raw stream: no gain to fold into W_Q, W_K, W_V")
    else:
        notes.append("norm without gain: none folded into " + ", ".join(names))
    if folding.only_queries:
        notes.append("keys and values read another stack's stream: W_K, W_V left alone")
    if folding.shift is not None:
        notes += [f"b_{name[2]} <- b_{name[2]} + norm_bias {name}" for name in names]
    if folding.center:
        notes += [f"{name} <- P {name}" for name in names]
    if folding.center_output:
        notes.append("W_O <- W_O P (the norm after the output projection centres)")
    if folding.write_gain is not None:
        notes.append("W_O <- W_O diag(post_norm gain)")
    if folding.center_write:
        notes.append("W_O <- W_O P (the next LayerNorm cannot see the mean of a write)")
    if geometry.norm.kind == "rms" and treatment != "gain":
        notes.append("centring not applicable: RMS norm")
    return notes


def _gain(heads: LayerHeads, name: str, geometry: Geometry) -> Float:
    stored = _vector(heads, name, geometry)
    return 1.0 + stored if geometry.norm.plus_one else stored


def _vector(heads: LayerHeads, name: str, geometry: Geometry) -> Float:
    """A norm's vector over d_model from the extras, float64."""
    if name not in heads.extras:
        raise NumericError(
            f"the layer has no {name}, which its norm needs",
            where="extras.npz",
            expected=f"{name} of length {geometry.d_model}",
            do="recompute the heads of this layer, or choose layer_norm: [raw]",
        )
    vector = np.asarray(heads.extras[name], dtype=np.float64)
    if vector.shape != (geometry.d_model,):
        raise NumericError(f"{name} has shape {vector.shape}", where="extras.npz", expected=f"({geometry.d_model},)")
    return vector


def treated(heads: LayerHeads, geometry: Geometry, treatment: str) -> tuple[LayerHeads, list[str]]:
    """A layer under a treatment, biases included, and one sentence per thing that was folded.

    Arrays that change come back in float64, the others as they are; `layer_factors.LayerFactors` goes head by head.

    Returns:
        The layer and the notes. Where beta is folded, `b_Q`, `b_K`, `b_V` are in its extras even if the checkpoint
        has no such bias: `q = x_normed @ W_Q + b_Q`, with x_normed the normed stream before gain and shift.
    """
    fold = folding(heads, geometry, treatment)
    changes: dict[str, Any] = {}
    extras = dict(heads.extras)
    for name in ("W_Q",) if fold.only_queries else ("W_Q", "W_K", "W_V"):
        stored = getattr(heads, name)
        if fold.reads:
            changes[name] = np.stack([fold.read(W) for W in stored])
        if fold.shift is not None:
            added = np.stack([fold.read_bias(W) for W in stored])
            bias = name.replace("W", "b")
            extras[bias] = added + np.asarray(extras.get(bias, 0.0), dtype=np.float64)
    if fold.writes:
        changes["W_O"] = np.stack([fold.write(W) for W in heads.W_O])
        if "b_O" in extras:
            extras["b_O"] = fold.write(extras["b_O"])
    return replace(heads, extras=extras, **changes), list(fold.notes)
