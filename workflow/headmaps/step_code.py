"""Which project files each step imports, and which locked packages can change its result.

Both are inputs of the step's rule: an edit or an upgrade re-runs exactly the steps it can change. A test runs every
step and fails when these lists and what was really imported differ. Fetching lists nothing: no edit and no upgrade
downloads a checkpoint again.
"""

from headmaps.figures.names import FIGURES

_FRAME = ("__init__.py", "errors.py", "records.py", "steps/__init__.py", "steps/command.py")

_ARCHITECTURES = (
    *("architectures/__init__.py", "architectures/encoders.py", "architectures/entry.py"),
    *("architectures/gguf_style.py", "architectures/gpt_style.py", "architectures/llama_style.py"),
    *("architectures/measure.py", "architectures/model.py", "architectures/names.py", "architectures/positions.py"),
    *("architectures/table.py", "geometry.py", "layouts.py"),
)
_TENSORS = (
    *("checkpoint/__init__.py", "checkpoint/dtypes.py", "checkpoint/formats/__init__.py"),
    *("checkpoint/formats/safetensors.py", "checkpoint/store.py"),
)
_HEADS = ("geometry.py", "heads.py", "layer_factors.py", "layer_norm.py", "layouts.py", "linalg.py")
_QUANTITIES = ("quantities/__init__.py", "quantities/pairs.py", "quantities/quantity.py", "quantities/table.py")
_TABLES = ("blocks.py", "geometry.py", "null_columns.py", "significance.py", "tables.py", *_QUANTITIES)
_DRAWING = ("figures/__init__.py", "figures/captions.py", "figures/lean.py", "figures/style.py")
_FIGURE = (*_DRAWING, "figures/data.py", "figures/drawing.py", "figures/names.py", "steps/figure.py")
_EFFECT = ("blocks.py", "decomposition.py", "figures/effect.py", "linalg.py", *_QUANTITIES)
_PANELS = ("figures/panels.py", *_QUANTITIES)
_PAGE = (
    *("atlas/__init__.py", "atlas/columns.py", "atlas/packing.py", "atlas/page.py", "atlas/results.py"),
    *("factor_quantities.py", *_HEADS, *_QUANTITIES),
)

_OWN: dict[str, tuple[str, ...]] = {
    "geometry": ("steps/geometry.py", *_ARCHITECTURES),
    "heads": ("steps/heads.py", "heads.py", *_ARCHITECTURES, *_TENSORS),
    "decompose": (
        *("steps/decompose.py", "bias_lines.py", "decomposition.py", "factor_quantities.py", "precision.py"),
        *("seeds.py", *_HEADS, *_QUANTITIES),
    ),
    "haar_pool": ("steps/haar_pool.py", "geometry.py", "haar.py", "linalg.py", "seeds.py", *_QUANTITIES),
    "baseline": (
        *("steps/baseline.py", "baselines.py", "decomposition.py", "haar.py", "seeds.py", *_HEADS, *_QUANTITIES),
    ),
    "tables": ("steps/tables.py", *_TABLES),
    "figure1": (*_FIGURE, "blocks.py", "figures/histogram.py", *_QUANTITIES),
    "figure2": (*(*_FIGURE, "figures/ternary.py", "geometry.py", "haar.py", "linalg.py", "seeds.py", *_QUANTITIES),),
    "figure3": (*_FIGURE, *_EFFECT),
    "figure4": (*_FIGURE, "blocks.py", "figures/histogram.py", *_QUANTITIES),
    "figure5": (*_FIGURE, *_EFFECT),
    **dict.fromkeys(("figure3_states", "figure5_states"), (*_FIGURE, *_EFFECT, "figures/bands.py", *_HEADS)),
    "heatmaps": (*_FIGURE, *_PANELS, "figures/heatmaps.py"),
    "profiles": (*_FIGURE, *_PANELS, "figures/profiles.py"),
    "nulls": (*_FIGURE, *_PANELS, "figures/nulls.py"),
    "rotary": ("steps/rotary.py", "decomposition.py", "positions.py", *_HEADS, *_QUANTITIES),
    "rotary_table": (
        *("steps/rotary_table.py", "decomposition.py", "figures/data.py", "figures/rotary.py", "positions.py"),
        *(*_HEADS, *_TABLES, *_DRAWING, *_PANELS),
    ),
    "composition": ("steps/composition.py", "composition.py", "decomposition.py", *_HEADS),
    "composition_table": (
        *("steps/composition_table.py", "composition.py", "decomposition.py", "figures/composition.py"),
        *("figures/data.py", *_HEADS, *_TABLES, *_DRAWING, *_PANELS),
    ),
    "treatments": (
        *("steps/treatments.py", "comparison.py", "figures/treatments.py", "training.py"),
        *(*_TABLES, *_DRAWING, *_PANELS),
    ),
    "comparison": (
        *("steps/comparison.py", "comparison.py", "decomposition.py", "figures/comparison.py", "figures/data.py"),
        *("subspaces.py", "training.py", *_HEADS, *_TABLES, *_DRAWING, *_PANELS),
    ),
    "published": (
        *("steps/published.py", "comparison.py", "figures/data.py", "figures/published.py", "figures/ternary.py"),
        *("published.py", "training.py", "verdict.py", *_TABLES, *_DRAWING),
    ),
    "atlas": (
        *("steps/atlas.py", "atlas/bands.py", "atlas/data.py", "atlas/facts.py", "decomposition.py", "haar.py"),
        *("seeds.py", *_PAGE),
    ),
    "describe": ("steps/describe.py", "crate.py", "provenance.py"),
    "atlas_index": ("steps/atlas_index.py", "atlas/models.py", *_PAGE),
}

CODE: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("fetch_files", "resolve", "fetch_layer"), ()),
    **{step: tuple(sorted({*_FRAME, *own})) for step, own in _OWN.items()},
}
"""Step (a figure counts as one) -> the modules it imports, relative to the package."""

ASSETS: dict[str, str] = {"atlas": "atlas/assets", "atlas_index": "atlas/assets"}
"""Step -> the folder of files that are not Python and go into its result."""

_DRAWN = ("numpy", "matplotlib")

PACKAGES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("fetch_files", "resolve", "fetch_layer", "geometry"), ()),
    **dict.fromkeys(("heads", "decompose", "haar_pool", "baseline", "rotary", "composition"), ("numpy",)),
    "tables": ("numpy", "pyarrow"),
    **dict.fromkeys((*FIGURES, "figure3_states", "figure5_states"), _DRAWN),
    "figure2": (*_DRAWN, "mpltern"),
    **dict.fromkeys(("rotary_table", "composition_table", "treatments", "comparison"), (*_DRAWN, "pyarrow")),
    "published": (*_DRAWN, "mpltern", "pyarrow"),
    "atlas": ("numpy", "scipy", "pyarrow", "plotly"),
    "atlas_index": ("numpy", "plotly"),
    "describe": ("rocrate",),
}
"""Step -> the packages whose locked version can change its result."""
