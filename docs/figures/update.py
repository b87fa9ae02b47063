"""Copy the pictures of docs/reading-the-figures.md from the results of a run: smaller, with 256 colours.

    python docs/figures/update.py results

The run is config/everything.yaml: the default models with every baseline, distance, treatment and comparison.
"""

import argparse
from pathlib import Path

from PIL import Image

WIDTH = 920
LIMIT = 200_000
"""Bytes of a picture; one that is more is made narrower."""
MODEL = "smollm2-135m"
PICTURES = {
    "figure1": f"{MODEL}/raw/figures/figure1/layer-04",
    "figure2": f"{MODEL}/raw/figures/figure2",
    "figure3": f"{MODEL}/raw/figures/figure3/most-self",
    "figure4": f"{MODEL}/raw/figures/figure4/layer-04",
    "figure5": f"{MODEL}/raw/figures/figure5/most-self",
    "heatmaps": f"{MODEL}/raw/figures/heatmaps-value",
    "profiles": f"{MODEL}/raw/figures/profiles-value",
    "nulls": f"{MODEL}/raw/figures/nulls-value",
    "rotary": f"{MODEL}/raw/figures/rotary-qk",
    "composition": f"{MODEL}/gain/figures/composition",
    "treatments": f"{MODEL}/treatments/value",
    "models": "comparison/models/raw/value",
}


def main() -> None:
    """Shrink every picture into this folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="the results folder of the run")
    results = parser.parse_args().results
    for name, place in PICTURES.items():
        shrink(results / f"{place}.png", Path(__file__).parent / f"{name}.png")


def shrink(source: Path, target: Path) -> None:
    """Write a picture with a palette, no wider than `WIDTH` and no larger than `LIMIT`."""
    with Image.open(source) as picture:
        whole = picture.convert("RGB")
    for width in range(WIDTH, 400, -60):
        small = whole.resize((width, round(whole.height * width / whole.width)), Image.Resampling.LANCZOS)
        small.quantize(256, kmeans=2, dither=Image.Dither.NONE).save(target, optimize=True)
        if target.stat().st_size <= LIMIT:
            return
    raise SystemExit(f"{source} cannot be made smaller than {LIMIT} bytes")


if __name__ == "__main__":
    main()
