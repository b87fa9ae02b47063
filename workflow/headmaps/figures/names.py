"""Which files each figure consists of. Standard library only: the workflow reads it while it plans.

Every file name is relative to `results/{model}/{layer_norm}/`. The QK matrix of a model with latent attention comes in
two parts (`qk_nope`, `qk_rope`); its files then carry the part's name, `figure4/layer-03-qk_nope.svg`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from headmaps.errors import ConfigError

ROLES = ("most-self", "median-self", "least-self")
"""The heads drawn by `heads: auto`: the largest, the middle and the smallest mean self of all heads."""

Heads = Sequence[Sequence[int]] | Literal["auto", "all"]


@dataclass(frozen=True)
class Figure:
    """One figure: its title, its heading in the report, which matrices it shows, and what it reads.

    Attributes:
        side: `value`, `qk` or `both`: the matrices the figure is drawn for.
        per: `layer` (a file per layer), `head` (a file per chosen head) or `model` (a file per matrix).
        reads: `decompositions`, `tables`, or `both`.
    """

    title: str
    category: str
    side: Literal["value", "qk", "both"]
    per: Literal["layer", "head", "model"]
    reads: Literal["decompositions", "tables", "both"]


FIGURES: dict[str, Figure] = {
    "figure1": Figure(
        "Figure 1: input-output singular vector projections", "Figures 1 and 4", "value", "layer", "decompositions"
    ),
    "figure2": Figure("Figure 2: what heads do with what they read", "Figure 2", "both", "model", "tables"),
    "figure3": Figure("Figure 3: input-output effect of a head", "Figures 3 and 5", "value", "head", "both"),
    "figure4": Figure(
        "Figure 4: target-current singular vector projections", "Figures 1 and 4", "qk", "layer", "decompositions"
    ),
    "figure5": Figure("Figure 5: target-current effect of a head", "Figures 3 and 5", "qk", "head", "both"),
    "heatmaps": Figure("Heat maps over heads and layers", "All heads", "both", "model", "tables"),
    "profiles": Figure("Depth profiles", "All heads", "both", "model", "tables"),
    "nulls": Figure("Heads against their matched nulls", "All heads", "both", "model", "tables"),
}


COMPARISON_TABLES = {
    "models": ("layers.csv", "models.csv"),
    "training": ("layers.csv", "trajectories.csv", "onsets.csv"),
    "pair": ("changes.csv", "most-changed.csv"),
}
"""The tables of each kind of comparison, in the order the comparison step writes them."""


@dataclass(frozen=True)
class FigureJob:
    """One call of the figure step.

    Attributes:
        figure: its name, a key of `FIGURES`.
        key: names the job among those of its figure (`layer-03`, `all`); its record is `figures/{figure}/{key}.json`.
        layers: the layers whose decompositions it reads (none if the tables are enough).
        matrices: the matrices it draws.
        heads: the heads it draws, as the config gives them.
        outputs: the files it writes, relative to `results/{model}/{layer_norm}/`.
    """

    figure: str
    key: str
    layers: tuple[int, ...]
    matrices: tuple[str, ...]
    heads: Heads
    outputs: tuple[str, ...]

    @property
    def record(self) -> str:
        """The record's path, relative like the outputs."""
        return f"figures/{self.figure}/{self.key}.json"


def layer_name(layer: int, last_layer: int) -> str:
    """`layer-03`: zero-padded to the width of the model's last layer, at least two digits."""
    return f"layer-{layer:0{max(2, len(str(last_layer)))}d}"


def matrices_of(figure: str, matrices: Sequence[str]) -> tuple[str, ...]:
    """Those of the model's matrices that a figure draws.

    Raises:
        ConfigError: there is no such figure.
    """
    if figure not in FIGURES:
        what = f"there is no figure named {figure!r}"
        raise ConfigError(what, where="figures", expected="one of " + ", ".join(FIGURES))
    side = FIGURES[figure].side
    return tuple(m for m in matrices if side == "both" or (m == "value") == (side == "value"))


def output_name(figure: str, matrix: str, place: str = "") -> str:
    """A figure file's name without its format, relative to `results/{model}/{layer_norm}/`.

    Args:
        figure: a key of `FIGURES`.
        matrix: `value`, `qk`, `qk_nope` or `qk_rope`.
        place: the layer, head or role (`layer-13`, `layer-13-head-07`, `most-self`); empty for one file per matrix.
    """
    # figures 1 and 3 are the value matrix's and 4 and 5 the QK matrix's: only what differs from that is in the name
    plain = {
        "figure1": ("value",),
        "figure3": ("value",),
        "figure4": ("qk",),
        "figure5": ("qk",),
        "figure2": ("value",),
    }
    suffix = "" if matrix in plain.get(figure, ()) else f"-{matrix}"
    return f"figures/{figure}/{place}{suffix}" if place else f"figures/{figure}{suffix}"


def outputs(
    figure: str, layers: Sequence[int], matrices: Sequence[str], heads: Heads, formats: Sequence[str], last_layer: int
) -> list[str]:
    """Every file of a figure, in drawing order, relative to `results/{model}/{layer_norm}/`.

    Args:
        figure: a key of `FIGURES`.
        layers: the layers to draw (figures 1 and 4, and figures 3 and 5 with `heads: all`).
        matrices: the model's matrices (`value`, and `qk` or `qk_nope`, `qk_rope`).
        heads: `auto`, `all` or pairs [layer, head] (figures 3 and 5).
        formats: `svg`, `png`, `pdf`. `heads: all` is always one PDF a layer.
        last_layer: the number of the model's last layer, which sets the width of layer numbers.
    """
    drawn = matrices_of(figure, matrices)
    if FIGURES[figure].per == "model":
        places: Sequence[str] = [""]
    elif FIGURES[figure].per == "layer" or heads == "all":
        places = [layer_name(layer, last_layer) for layer in layers]
    elif heads == "auto":
        places = ROLES
    else:
        places = [f"{layer_name(layer, last_layer)}-head-{head:02d}" for layer, head in pairs(heads)]
    if FIGURES[figure].per == "head" and heads == "all":
        formats = ["pdf"]
    return [f"{output_name(figure, m, place)}.{form}" for place in places for m in drawn for form in formats]


def pairs(heads: Heads) -> list[tuple[int, int]]:
    """The chosen heads as distinct (layer, head) in the order given; empty for `auto` and `all`."""
    if isinstance(heads, str):
        return []
    return list(dict.fromkeys((int(layer), int(head)) for layer, head in heads))


def jobs(
    figure: str,
    layers: Sequence[int],
    matrices: Sequence[str],
    heads: Heads,
    formats: Sequence[str],
    last_layer: int,
    all_layers: Sequence[int],
    layers_per_job: int = 1,
) -> Iterator[FigureJob]:
    """The calls of the figure step that together write `outputs(...)`.

    Arguments as for `outputs`; `all_layers` are all layers of the model (a role's head may be in any of them), and
    `layers_per_job` is how many layers' histograms one job draws: importing matplotlib takes longer than one of them.
    """
    drawn = matrices_of(figure, matrices)
    if not drawn:
        return
    per = FIGURES[figure].per
    if per == "model" or (per == "head" and heads == "auto"):
        read = tuple(all_layers) if per == "head" else ()
        yield FigureJob(
            figure, "all", read, drawn, heads, tuple(outputs(figure, [], drawn, heads, formats, last_layer))
        )
        return
    if per == "head" and heads != "all":
        chosen = pairs(heads)
        layers, layers_per_job = sorted({layer for layer, _ in chosen}), 1
    else:
        chosen = []
    size = 1 if per == "head" else max(1, layers_per_job)
    for start in range(0, len(layers), size):
        part = tuple(layers[start : start + size])
        mine: Heads = [pair for pair in chosen if pair[0] in part] if chosen else heads
        key = layer_name(part[0], last_layer)
        if len(part) > 1:
            key += "-to-" + layer_name(part[-1], last_layer).removeprefix("layer-")
        files = tuple(outputs(figure, part, drawn, mine, formats, last_layer))
        yield FigureJob(figure, key, part, drawn, mine, files)
