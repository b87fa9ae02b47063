"""Which project files each step imports, and which locked packages can change its result.

Both are inputs of the step's rule: an edit or an upgrade re-runs exactly the steps it can change. A test runs every
step and fails when these lists and what was really imported differ. Fetching lists nothing: no edit and no upgrade
downloads a checkpoint again.
"""

_FRAME = ("__init__.py", "errors.py", "records.py", "steps/__init__.py", "steps/command.py")

CODE: dict[str, tuple[str, ...]] = {
    "fetch_files": (),
    "resolve": (),
    "fetch_layer": (),
    "geometry": (*_FRAME, "steps/geometry.py", "geometry.py"),
    "heads": (*_FRAME, "steps/heads.py", "geometry.py"),
    "decompose": (*_FRAME, "steps/decompose.py", "geometry.py"),
    "haar_pool": (*_FRAME, "steps/haar_pool.py"),
    "baseline": (*_FRAME, "steps/baseline.py"),
    "tables": (*_FRAME, "steps/tables.py"),
    "figure": (*_FRAME, "steps/figure.py"),
    "atlas": (*_FRAME, "steps/atlas.py"),
    "atlas_index": (*_FRAME, "steps/atlas_index.py"),
}

PACKAGES: dict[str, tuple[str, ...]] = {
    "fetch_files": (),
    "resolve": (),
    "fetch_layer": (),
    "geometry": (),
    "heads": ("numpy",),
    "decompose": ("numpy", "scipy"),
    "haar_pool": ("numpy", "scipy"),
    "baseline": ("numpy", "scipy"),
    "tables": ("numpy", "pyarrow"),
    "figure": ("numpy", "pyarrow", "matplotlib", "mpltern"),
    "atlas": ("numpy", "pyarrow", "plotly"),
    "atlas_index": (),
}
