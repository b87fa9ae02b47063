"""Made-up models for the figures' tests: decompositions, tables and geometry of any size, without a checkpoint."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headmaps.decomposition import gaps, pair_quantities
from headmaps.records import write_arrays

QUANTITIES = (
    "self_mean", "rotation_mean", "ortho_mean", "self_energy", "rotation_energy", "ortho_energy", "frobenius_norm",
    "overlap_mean",
)  # fmt: skip


def random_head(rng: np.random.Generator, d: int, r: int, copying: float) -> tuple[NDArray[Any], NDArray[Any]]:
    """sigma (r,) and Z (r, r) of a head whose output vectors lean towards its input vectors by `copying`."""
    U = np.linalg.qr(rng.normal(size=(d, r)))[0]
    V = np.linalg.qr(copying * U * rng.choice([1, 1, 1, -1], size=r) + rng.normal(size=(d, r)) / np.sqrt(d))[0]
    sigma = np.sort(rng.gamma(2.0, 0.4, size=r))[::-1]
    return sigma, V.T @ U


class SyntheticModel:
    """A model of `layers` layers and `heads` heads, written as result files under `root`."""

    def __init__(
        self,
        root: Path,
        layers: int,
        heads: int,
        d: int = 96,
        r: int = 16,
        *,
        biases: bool = False,
        kinds: Sequence[str] = ("gaussian",),
        matrices: Sequence[str] = ("value", "qk"),
        **geometry: Any,
    ) -> None:
        self.root, self.layers, self.heads, self.d, self.r = root, layers, heads, d, r
        self.kinds, self.matrices = list(kinds), list(matrices)
        self.biases = biases
        root.mkdir(parents=True, exist_ok=True)
        self.geometry = {
            "model_type": "llama", "layout": "separate", "layers": list(range(layers)), "n_layers": layers,
            "d_model": d, "n_heads": heads, "n_kv_heads": heads, "d_head": r, "d_head_v": r, "dtype": "F32",
            "scale": r**-0.5,
            "position": {"scheme": "none", "rotary": {}, "variant_of_layer": {}, "slopes": [], "relative": None},
            "norm": {"kind": "layer", "place": "pre"}, "qk_norm": None, "matrices": self.matrices, **geometry,
        }  # fmt: skip
        self.source = {"source": "hub", "repo": "some/model", "commit": "0123456789abcdef0123456789abcdef01234567"}
        (root / "geometry.json").write_text(json.dumps(self.geometry))
        (root / "source.json").write_text(json.dumps(self.source))
        self._write()

    def decomposition(self, matrix: str, layer: int) -> Path:
        return self.root / "decomposition" / matrix / f"layer-{layer:03d}.npz"

    def _write(self) -> None:
        rows = []
        for number, matrix in enumerate(self.matrices):
            for layer in range(self.layers):
                rng = np.random.default_rng([number, layer])
                copying = rng.gamma(1.5, 0.5, size=self.heads) * (0.3 + layer / max(1, self.layers - 1))
                made = [random_head(rng, self.d, self.r, c) for c in copying]
                sigma, Z = np.stack([m[0] for m in made]), np.stack([m[1] for m in made])
                biases = {}
                if self.biases:
                    biases = {f"bias_{side}_b_V": rng.normal(size=sigma.shape) / 9 for side in ("input", "output")}
                rank = np.full(self.heads, self.r)
                path = self.decomposition(matrix, layer)
                path.parent.mkdir(parents=True, exist_ok=True)
                write_arrays(path, {"sigma": sigma, "Z": Z, "gap": gaps(sigma), "rank": rank, **biases})
                rows += [self._row(layer, head, matrix, sigma[head], Z[head]) for head in range(self.heads)]
        with open(self.root / "heads.csv", "w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)

    def _row(self, layer: int, head: int, matrix: str, sigma: NDArray[Any], Z: NDArray[Any]) -> dict[str, Any]:
        overlap, own, rotation, ortho = pair_quantities(Z)
        energy = sigma**2 / (sigma**2).sum()
        values = (
            own.mean(), rotation.mean(), ortho.mean(), energy @ own**2, energy @ rotation**2, energy @ ortho**2,
            np.sqrt((sigma**2).sum()), overlap.mean(),
        )  # fmt: skip
        row: dict[str, Any] = {"layer": layer, "head": head, "matrix": matrix, "rank": self.r}
        row |= dict(zip(QUANTITIES, map(float, values), strict=True))
        rng = np.random.default_rng([layer, head])
        chance = np.array([0.8 / self.d**0.5, (self.r / self.d) ** 0.5, (1 - self.r / self.d) ** 0.5, 1 / self.d,
                           (self.r - 1) / self.d, 1 - self.r / self.d, values[6], 0.0])  # fmt: skip
        for k, kind in enumerate(self.kinds):
            for quantity, mean in zip(
                QUANTITIES, chance * (1 + 0.2 * k) * rng.uniform(0.97, 1.03, size=8), strict=True
            ):
                value, sd = row[quantity], abs(mean) * 0.08 + 1e-3
                row |= {f"{quantity}_{kind}_mean": mean, f"{quantity}_{kind}_sd": sd}
                row |= {
                    f"{quantity}_{kind}_difference": value - mean,
                    f"{quantity}_{kind}_ratio": value / mean if mean else "",
                }
                row |= {f"{quantity}_{kind}_z": (value - mean) / sd, f"{quantity}_{kind}_p": 0.01}
        return row

    def command(self, spec: dict[str, Any], outputs: Sequence[str], folder: Path) -> list[str]:
        """The figure step's arguments for a spec, writing under `folder`."""
        spec = {"model": "made-up", "layer_norm": "raw", "heads": "auto", "baselines": self.kinds, **spec}
        decompositions = [self.decomposition(m, layer) for m in spec["matrices"] for layer in spec["layers"]]
        return [
            "--spec", json.dumps(spec), "--geometry", str(self.root / "geometry.json"), "--source",
            str(self.root / "source.json"), "--heads-csv", str(self.root / "heads.csv"),
            "--decompositions", *map(str, decompositions), "--outputs", *[str(folder / name) for name in outputs],
            "--record", str(folder / "record.json"),
        ]  # fmt: skip
