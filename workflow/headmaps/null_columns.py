"""Columns of heads.csv that compare each head with its baselines: from the Haar pool and from literal draws.

`gaussian`: the pool's draws are of factors of norm 1, so a quantity of degree k in the scale of W is multiplied by
`(||A||_F ||B||_F)^k` of the head. `spectrum`: U and V are Haar given the head's own sigma; quantities without weights
have the gaussian's law; energy shares and traces come from the pool's squared entries and overlaps and the heads'
sigma, as one matrix product; what needs more of a draw (tr W^2, the commutator, eigenvalues) was drawn layer by layer.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headmaps.errors import ResultError
from headmaps.quantities import FROM_THE_POOL, HAAR_KINDS, REGISTRY
from headmaps.records import read_arrays
from headmaps.significance import (
    Significance,
    benjamini_hochberg,
    can_reject,
    heads_needed,
    significance,
    smallest_p,
)

Float = NDArray[np.float64]
Columns = dict[str, NDArray[Any]]

HEADS_AT_A_TIME = 256
"""Heads compared with the spectrum null at once: 8 MB of draws a quantity for a pool of 4096."""

WEIGHTED = (
    *("self_energy", "rotation_energy", "ortho_energy", "input_rotation_energy", "input_ortho_energy"),
    *("trace", "trace_share"),
)
"""The quantities of `spectrum_draws`."""

UNWEIGHTED = tuple(name for name in FROM_THE_POOL if name not in WEIGHTED)
"""Quantities of the vectors alone: their law is the same whatever the spectrum."""

NOT_ADJUSTED = ("unpaired",)
"""Kinds whose draws are other real factors of the model, shared between heads: no correction is offered for them."""


@dataclass(frozen=True)
class Heads:
    """What the comparison needs of the heads of one matrix, in the order of the table's rows.

    Attributes:
        columns: heads.csv's own columns, name -> (n,).
        sigma: (n, r).
        scale: (n,) `||A||_F ||B||_F`.
    """

    columns: Columns
    sigma: Float
    scale: Float


def spectrum_draws(pool: Mapping[str, Float], heads: Heads) -> Iterator[tuple[str, Float]]:
    """Draws of the weighted quantities under the spectrum null, one quantity at a time: name -> (n, N).

    Heads of less than full rank get NaN: their vectors live in fewer pairs than the pool's.
    """
    energy = heads.sigma**2
    total = energy.sum(axis=1, keepdims=True)
    full = heads.columns["rank"] == heads.sigma.shape[1]
    weights = np.divide(energy, total, out=np.full_like(energy, np.nan), where=full[:, None] & (total > 0))
    self_share = weights @ pool["self2"].T
    rotation_share = weights @ pool["rotation2"].T
    ortho_share = np.maximum(0.0, 1.0 - self_share - rotation_share)
    yield "self_energy", self_share
    # Z and its transpose have the same law under Haar, so one draw serves both sides
    for name, draws in {"rotation_energy": rotation_share, "ortho_energy": ortho_share}.items():
        yield name, draws
        yield f"input_{name}", draws
    if "overlap" in pool:
        trace = np.where(full[:, None], heads.sigma, np.nan) @ pool["overlap"].T
        yield "trace", trace
        yield "trace_share", trace / heads.sigma.sum(axis=1, keepdims=True).clip(min=np.finfo(float).tiny)


def null_columns(
    kinds: Sequence[str],
    heads: Heads,
    pool: Mapping[str, Float],
    literal: Mapping[str, Mapping[str, Float]],
) -> tuple[Columns, dict[str, Any]]:
    """Columns that compare the heads of one matrix with every baseline kind.

    Args:
        kinds: the kinds wanted, in the order of the columns.
        heads: the heads.
        pool: the Haar pool of this matrix' rank: quantity -> (N,), and `self2`, `rotation2` (`overlap`) -> (N, r).
        literal: kind -> quantity -> (n, N) draws; NaN where a head has fewer.

    Returns:
        (columns, facts): `{quantity}_{kind}_mean _sd _difference _ratio _z _p _p_adjusted`, `{kind}_draws`, and
        `{quantity}_{kind}_draws` where a quantity has a number of draws of its own; and per kind the number
        of draws (the most; quantities with fewer are named), the smallest p they allow, how many heads must reach it
        before Benjamini-Hochberg rejects any, which quantities have adjusted p values, which have none, and why.
    """
    columns: Columns = {}
    facts: dict[str, Any] = {}
    for kind in kinds:
        found = dict(_comparisons(kind, heads, pool, literal.get(kind, {})))
        if not found:
            continue
        adjusted = []
        for name, one in found.items():
            values = {key: getattr(one, key) for key in ("mean", "sd", "difference", "ratio", "z", "p")}
            tested = int(np.count_nonzero(~np.isnan(one.p)))
            if kind not in NOT_ADJUSTED and can_reject(int(one.draws.max(initial=0)), tested):
                values["p_adjusted"] = benjamini_hochberg(one.p)
                adjusted.append(name)
            columns |= {f"{name}_{kind}_{key}": value for key, value in values.items()}
        columns |= _draws_columns(kind, found)
        facts[kind] = _facts(kind, {name: int(one.draws.max(initial=0)) for name, one in found.items()}, adjusted)
        facts[kind]["heads_needed_for_a_rejection"] = heads_needed(facts[kind]["draws"], len(heads.scale))
    return columns, facts


def has_own_draws(kind: str, name: str) -> bool:
    """Whether a quantity's number of draws is not that of the kind's others: it needs more than the pool's sums."""
    costly = REGISTRY[name].cost != "products" or (kind == "spectrum" and name not in FROM_THE_POOL)
    return kind in HAAR_KINDS and costly


def _draws_columns(kind: str, found: Mapping[str, Significance]) -> Columns:
    """`{kind}_draws` of all quantities but those that have a column of their own."""
    own = {f"{name}_{kind}_draws": one.draws for name, one in found.items() if has_own_draws(kind, name)}
    # most: a draw that is zero throughout counts for the sizes alone
    most = np.max([one.draws for name, one in found.items() if not has_own_draws(kind, name)], axis=0)
    return {f"{kind}_draws": most} | own


def _facts(kind: str, draws: Mapping[str, int], adjusted: Sequence[str]) -> dict[str, Any]:
    most = max(draws.values())
    return {
        "draws": most,
        "fewer_draws": {name: number for name, number in draws.items() if number < most},
        "smallest_p": smallest_p(most),
        "adjusted": list(adjusted),
        "not_adjusted": [name for name in draws if name not in adjusted],
        "adjustment": _why(kind, len(adjusted), len(draws)),
    }


def _why(kind: str, adjusted: int, asked: int) -> str:
    few = "too few draws for the Benjamini-Hochberg procedure to find a few heads among all"
    if kind in NOT_ADJUSTED:
        return "not adjusted: the draws are pairings of real factors, which the heads share"
    if not adjusted:
        return f"not adjusted: {few}"
    text = "Benjamini-Hochberg over the heads of one matrix; grouped heads share a factor, so their p are dependent"
    return text if adjusted == asked else f"{text}; not for the quantities under not_adjusted: {few}"


def _comparisons(
    kind: str, heads: Heads, pool: Mapping[str, Float], literal: Mapping[str, Float]
) -> Iterator[tuple[str, Significance]]:
    asked = [name for name, entry in REGISTRY.items() if kind in entry.nulls]
    if kind in HAAR_KINDS:
        for name in asked:
            if name in pool and (kind == "gaussian" or name in UNWEIGHTED):
                yield name, _against_pool(heads, name, pool[name], full_rank_only=kind == "spectrum")
    if kind == "spectrum":
        yield from _against_spectrum(heads, pool)
    for name in asked:
        if name in literal:
            yield name, significance(heads.columns[name], literal[name])


def _against_spectrum(heads: Heads, pool: Mapping[str, Float]) -> Iterator[tuple[str, Significance]]:
    """Weighted quantities against the spectrum null, some heads at a time: a head has as many draws as the pool."""
    parts: dict[str, list[Significance]] = {}
    for start in range(0, len(heads.sigma), HEADS_AT_A_TIME):
        some = slice(start, start + HEADS_AT_A_TIME)
        chosen = Heads({"rank": heads.columns["rank"][some]}, heads.sigma[some], heads.scale[some])
        for name, draws in spectrum_draws(pool, chosen):
            parts.setdefault(name, []).append(significance(heads.columns[name][some], draws))
    for name, found in parts.items():
        yield (
            name,
            Significance(
                **{key.name: np.concatenate([getattr(one, key.name) for one in found]) for key in fields(Significance)}
            ),
        )


def _against_pool(heads: Heads, name: str, draws: Float, *, full_rank_only: bool) -> Significance:
    """Compare with the shared draws; the scale of W is divided out before and multiplied in after."""
    observed = heads.columns[name]
    if full_rank_only:
        observed = np.where(heads.columns["rank"] == heads.sigma.shape[1], observed, np.nan)
    degree = REGISTRY[name].degree
    if degree == 0:
        return significance(observed, draws)
    scale = heads.scale**degree
    found = significance(np.divide(observed, scale, out=np.full_like(scale, np.nan), where=scale > 0), draws)
    return Significance(
        found.mean * scale, found.sd * scale, found.difference * scale, found.ratio, found.z, found.p, found.draws
    )


def read_pool(path: Path, r: int) -> dict[str, Float]:
    """The Haar pool of rank r: quantity -> (N,), and `self2`, `rotation2`, `overlap` -> (N, r).

    Raises:
        ResultError: the file has no pool of this rank.
    """
    prefix = f"{r}."
    found = {name.removeprefix(prefix): array for name, array in read_arrays(path).items() if name.startswith(prefix)}
    if not found:
        raise ResultError(f"the Haar pool has no draws of rank {r}", where=str(path), do="run snakemake baselines")
    return found


def read_literal(paths: Iterable[Path], matrix: str, layers: Sequence[int]) -> dict[str, dict[str, Float]]:
    """Literal draws of one matrix, layers one below the other: kind -> quantity -> (n, N).

    Args:
        paths: files `.../baselines/{kind}/layer-LL.npz`, with arrays `{matrix}.{quantity}` (H, N).
        matrix: value, qk, ...
        layers: the model's layers, in the order of the table's rows.

    Raises:
        ResultError: a layer is missing or there twice.
    """
    by_kind: dict[str, dict[int, Path]] = {}
    for path in paths:
        layer = int(path.stem.removeprefix("layer-"))
        if layer in by_kind.setdefault(path.parent.name, {}):
            raise ResultError(f"layer {layer} of baseline {path.parent.name} is given twice", where=str(path))
        by_kind[path.parent.name][layer] = path
    found: dict[str, dict[str, Float]] = {}
    for kind, files in by_kind.items():
        if missing := [layer for layer in layers if layer not in files]:
            raise ResultError(f"baseline {kind} lacks layers {missing}", do="run snakemake baselines")
        parts = [read_arrays(files[layer]) for layer in layers]
        names = [name for name in parts[0] if name.startswith(f"{matrix}.")]
        found[kind] = {name.partition(".")[2]: _stacked([part[name] for part in parts]) for name in names}
    return found


def _stacked(parts: Sequence[Float]) -> Float:
    """(H, N_layer) arrays one below the other, NaN where a layer has fewer draws."""
    width = max(part.shape[1] for part in parts)
    return np.concatenate(
        [np.pad(part, ((0, 0), (0, width - part.shape[1])), constant_values=np.nan) for part in parts]
    )
