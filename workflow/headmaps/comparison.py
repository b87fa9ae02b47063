"""Several models, or the training revisions of one, or two related checkpoints, side by side.

Models of different width cannot be compared by a quantity itself, since chance already differs: self by chance is about
`sqrt(2 / (pi d))`. Each model therefore stands against its own null, as difference, ratio and z. All numbers come from
the `heads.csv` of each model; only the comparison of two checkpoints goes back to the weights, for subspaces.
"""

import csv
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headmaps.errors import ConfigError, ResultError
from headmaps.geometry import Geometry
from headmaps.quantities import KINDS, REGISTRY
from headmaps.training import training_step

Float = NDArray[np.float64]
Columns = dict[str, NDArray[Any]]

MAIN = ("self_mean", "rotation_mean", "ortho_mean", "self_energy", "rotation_energy", "ortho_energy")
"""The quantities that are drawn; tables have all."""

BEYOND = 2.0
"""Standard deviations of its null beyond which a head counts as grown."""

EFFECTS = ("mean", "difference", "ratio", "z")
"""What heads.csv says of a quantity q and a null k: `{q}_{k}_{effect}`."""


@dataclass(frozen=True)
class Member:
    """One model of a comparison: its name, its geometry, and its heads.csv as columns."""

    name: str
    geometry: Geometry
    heads: Columns

    def of(self, matrix: str) -> Columns:
        """The rows of one matrix."""
        rows = self.heads["matrix"] == matrix
        return {name: values[rows] for name, values in self.heads.items()}

    @property
    def matrices(self) -> list[str]:
        """Its matrices, in the table's order."""
        return list(dict.fromkeys(self.heads["matrix"].tolist()))


def read_heads(path: Path) -> Columns:
    """heads.csv as columns: `layer` and `head` int, `matrix` str, the others float with NaN for an empty cell.

    Raises:
        ResultError: the file is missing, has unequal rows or lacks a key column.
    """
    try:
        with open(path, encoding="utf-8", newline="") as stream:
            rows = list(csv.reader(stream))
    except FileNotFoundError:
        raise ResultError("a table that the comparison needs is missing", where=str(path), do="run snakemake") from None
    names = rows[0] if rows else []
    if any(len(row) != len(names) for row in rows) or not {"layer", "head", "matrix"} <= set(names):
        what = "the table has rows of unequal length, or no columns layer, head and matrix"
        raise ResultError(what, where=str(path), do=f"delete {path} and run snakemake")
    columns: Columns = {}
    for index, name in enumerate(names):
        cells = [row[index] for row in rows[1:]]
        if name == "matrix":
            columns[name] = np.array(cells, dtype=str)
        elif name in ("layer", "head"):
            columns[name] = np.array(cells, dtype=np.int64)
        else:
            columns[name] = np.array([float(cell) if cell else np.nan for cell in cells])
    return columns


def members(
    names: Sequence[str], geometries: Sequence[Geometry], heads: Sequence[Columns], where: str = "comparisons"
) -> list[Member]:
    """The models of a comparison.

    Raises:
        ConfigError: they have no matrix in common.
    """
    found = [Member(*each) for each in zip(names, geometries, heads, strict=True)]
    if not shared_matrices(found):
        each = "; ".join(f"{member.name}: {', '.join(member.matrices)}" for member in found)
        raise ConfigError(f"the models have no matrix in common ({each})", where=where, do="choose other models")
    return found


def shared_matrices(models: Sequence[Member]) -> list[str]:
    """The matrices that all models have, in the first one's order."""
    return [name for name in models[0].matrices if all(name in member.matrices for member in models)]


def shared_nulls(models: Sequence[Member]) -> list[str]:
    """The baseline kinds that all tables have columns of, in the order of the registry of kinds."""
    return [kind for kind in KINDS if all(f"self_mean_{kind}_mean" in member.heads for member in models)]


def depth_of(geometry: Geometry, layer: NDArray[Any]) -> Float:
    """Relative depth of layers: 0 for the first of the stack, 1 for the last; 0 in a model of one layer."""
    return np.asarray(layer, dtype=np.float64) / max(1, geometry.n_layers - 1)


def mean_of(values: Float) -> float:
    """Plain mean of what exists; NaN if nothing does."""
    there = values[np.isfinite(values)]
    return float(there.mean()) if there.size else float("nan")


def _measures(columns: Columns, kinds: Sequence[str]) -> list[str]:
    """The columns to average: every quantity of the registry, and its effects against the shared nulls."""
    names = [name for name in REGISTRY if name in columns]
    effects = [f"{name}_{kind}_{effect}" for name in REGISTRY for kind in kinds for effect in EFFECTS]
    return names + [name for name in effects if name in columns]


# --- models -------------------------------------------------------------------------------------------------------


def layer_means(models: Sequence[Member]) -> Columns:
    """One row per model, matrix and layer: the mean over its heads of every quantity and of its effects.

    Columns: model, matrix, layer, depth, heads (how many), then the quantities and, for the nulls that all models have,
    `{q}_{kind}_mean`, `_difference`, `_ratio`, `_z`.
    """
    kinds = shared_nulls(models)
    rows: list[dict[str, Any]] = []
    for member in models:
        for matrix in shared_matrices(models):
            part = member.of(matrix)
            names = _measures(part, kinds)
            for layer in np.unique(part["layer"]):
                here = part["layer"] == layer
                keys = {"model": member.name, "matrix": matrix, "layer": int(layer)}
                keys |= {"depth": float(depth_of(member.geometry, layer)), "heads": int(here.sum())}
                rows.append(keys | {name: mean_of(part[name][here]) for name in names})
    return as_columns(rows)


def model_means(models: Sequence[Member]) -> Columns:
    """One row per model and matrix: its dimensions, and the mean over all heads of every quantity and its effects."""
    kinds = shared_nulls(models)
    rows: list[dict[str, Any]] = []
    for member in models:
        geometry = member.geometry
        for matrix in shared_matrices(models):
            part = member.of(matrix)
            keys = {"model": member.name, "matrix": matrix, "d_model": geometry.d_model}
            keys |= {"r": geometry.rank_of(matrix), "layers": len(geometry.layers), "heads": len(part["head"])}
            rows.append(keys | {name: mean_of(part[name]) for name in _measures(part, kinds)})
    return as_columns(rows)


def as_columns(rows: Sequence[Mapping[str, Any]]) -> Columns:
    """Rows with possibly different keys as columns; NaN where a row lacks one."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: np.array([row.get(name, np.nan) for row in rows]) for name in names}


# --- training -----------------------------------------------------------------------------------------------------


def by_step(models: Sequence[Member]) -> list[tuple[int, Member]]:
    """(training step, model), ascending.

    Raises:
        ConfigError: two have the same step, or their shapes differ.
    """
    ordered = sorted(((training_step(member.name), member) for member in models), key=lambda pair: pair[0])
    for (step, one), (other_step, two) in itertools.pairwise(ordered):
        if step == other_step:
            raise ConfigError(f"{one.name} and {two.name} have the same training step, {step}", where="comparisons")
        check_same_shape(one, two)
    return ordered


def check_same_shape(one: Member, two: Member) -> None:
    """Raise a ConfigError unless two models have the same layers and head dimensions."""
    names = ("layers", "d_model", "n_heads", "n_kv_heads", "d_head", "d_head_v")
    differ = [name for name in names if getattr(one.geometry, name) != getattr(two.geometry, name)]
    if differ:
        values = "; ".join(f"{n}: {getattr(one.geometry, n)} and {getattr(two.geometry, n)}" for n in differ)
        what = f"{one.name} and {two.name} have different shapes ({values})"
        raise ConfigError(what, where="comparisons", do="compare them with kind: models")


def trajectories(models: Sequence[Member]) -> Columns:
    """One row per revision, matrix, layer and head: step, the quantities `MAIN`, their effects against shared nulls."""
    kinds = shared_nulls(models)
    parts: list[Columns] = []
    for step, member in by_step(models):
        for matrix in shared_matrices(models):
            part = member.of(matrix)
            size = len(part["head"])
            keys: Columns = {"model": np.full(size, member.name), "step": np.full(size, step)}
            names = ["matrix", "layer", "head", *(name for name in _measures(part, kinds) if _is_main(name))]
            parts.append(keys | {name: part[name] for name in names})
    names = list(dict.fromkeys(name for part in parts for name in part))
    missing = [np.full(len(part["step"]), np.nan) for part in parts]
    return {name: np.concatenate([p.get(name, gap) for p, gap in zip(parts, missing, strict=True)]) for name in names}


def _is_main(name: str) -> bool:
    return name in MAIN or any(
        name == f"{quantity}_{kind}_{effect}" for quantity in MAIN for kind in KINDS for effect in EFFECTS
    )


def onsets(table: Columns, kind: str, quantity: str = "self_mean") -> Columns:
    """When each head's quantity came about: one row per matrix, layer and head.

    Columns: matrix, layer, head, first, last (the quantity at the first and last step), null and z (at the last step),
    and `half_step`: the first step from which on the quantity stays at least half-way from its null to its last value;
    NaN for a head that ends within `BEYOND` standard deviations of its null, where there is nothing to date.

    Args:
        table: `trajectories(...)`.
        kind: the null.
        quantity: one of `MAIN`.
    """
    keys = [table["matrix"], table["layer"], table["head"]]
    order = np.lexsort((table["step"], keys[2], keys[1], keys[0]))
    rows: list[dict[str, Any]] = []
    changed = np.flatnonzero(np.any([key[order][1:] != key[order][:-1] for key in keys], axis=0)) + 1
    for block in np.split(order, changed):
        values, null = table[quantity][block], table[f"{quantity}_{kind}_mean"][block]
        last, ground = values[-1], null[-1]
        reached = (values - null) * np.sign(last - ground) >= 0.5 * abs(last - ground)
        since = len(reached) - int(np.argmin(reached[::-1])) if not reached.all() else 0
        z = table[f"{quantity}_{kind}_z"][block][-1]
        there = bool(np.isfinite(values).all() and abs(z) > BEYOND)
        row = {"matrix": str(keys[0][block[0]]), "layer": int(keys[1][block[0]]), "head": int(keys[2][block[0]])}
        row |= {"first": float(values[0]), "last": float(last), "null": float(ground), "z": float(z)}
        rows.append(row | {"half_step": float(table["step"][block][since]) if there else float("nan")})
    return as_columns(rows)


# --- two checkpoints ----------------------------------------------------------------------------------------------


def changes(one: Member, two: Member) -> Columns:
    """One row per matrix, layer and head of two models of one shape: each quantity's change, second minus first.

    Columns: matrix, layer, head; for `MAIN` also the values (`{q}_first`, `{q}_second`); `{q}_change` for all.

    Raises:
        ConfigError: the shapes differ.
        ResultError: the tables' rows differ.
    """
    check_same_shape(one, two)
    parts: list[Columns] = []
    for matrix in shared_matrices([one, two]):
        first, second = one.of(matrix), two.of(matrix)
        keys = ("matrix", "layer", "head")
        if any(not np.array_equal(first[key], second[key]) for key in keys):
            raise ResultError(f"the tables of {one.name} and {two.name} have different rows for {matrix}")
        part = {key: first[key] for key in keys}
        for name in (name for name in REGISTRY if name in first and name in second):
            if name in MAIN:
                part |= {f"{name}_first": first[name], f"{name}_second": second[name]}
            part[f"{name}_change"] = second[name] - first[name]
        parts.append(part)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def treatment_changes(names: Sequence[str], tables: Sequence[Columns]) -> Columns:
    """The norm treatments of one model side by side: one row per matrix, layer, head and treatment.

    Columns: matrix, layer, head, treatment, each quantity, and `{q}_change`: its difference from the first treatment's.

    Raises:
        ResultError: the tables' rows differ.
    """
    parts: list[Columns] = []
    keys = ("matrix", "layer", "head")
    for name, table in zip(names, tables, strict=True):
        if any(not np.array_equal(table[key], tables[0][key]) for key in keys):
            raise ResultError(f"the tables of the treatments {names[0]} and {name} have different rows")
        shared = [quantity for quantity in REGISTRY if all(quantity in each for each in tables)]
        part: Columns = {key: table[key] for key in keys} | {"treatment": np.full(len(table["head"]), name)}
        part |= {quantity: table[quantity] for quantity in shared}
        parts.append(part | {f"{quantity}_change": table[quantity] - tables[0][quantity] for quantity in shared})
    stacked = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    # treatments of one head below one another, heads in the order of heads.csv
    order = np.arange(len(stacked["head"])).reshape(len(parts), -1).T.ravel()
    return {name: values[order] for name, values in stacked.items()}
