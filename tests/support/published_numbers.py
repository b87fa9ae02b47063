"""Published numbers of a falcon checkpoint made as the article made its own: QR and SVD, in NumPy, without headmaps.

The gains of the layer norm are folded in; the files have the names, columns and digits of the article's.
"""

import json
import zipfile
from pathlib import Path

import numpy as np

PER_LAYER = ("gain", "beta", "fused", "fused bias", "dense", "dense bias")


class Falcon:
    """The attention tensors of a `pytorch_model.bin` as hub/builders.py writes it: one entry a tensor, in order."""

    def __init__(self, folder: Path, n_heads: int = 32, d_model: int = 2048, layers: int = 24) -> None:
        self.archive = zipfile.ZipFile(folder / "pytorch_model.bin")
        self.prefix = next(name for name in self.archive.namelist() if name.endswith("/data/0")).removesuffix("0")
        self.n_heads, self.d_model, self.layers, self.r = n_heads, d_model, layers, d_model // n_heads

    def layer(self, layer: int) -> dict[str, np.ndarray]:
        """Float64 tensors of one layer; entry 0 is the embedding, then twelve a layer, six of them attention's."""
        tensors = {}
        for number, name in enumerate(PER_LAYER):
            bits = np.frombuffer(self.archive.read(f"{self.prefix}{1 + 12 * layer + number}"), "<u2")
            tensors[name] = (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        return tensors

    def heads(self, layer: int):
        """(W_Q, W_K, W_V, W_O, b_Q, b_K, b_V, b_O) with the gain and beta folded in, of each head in turn."""
        t, H, r, d = self.layer(layer), self.n_heads, self.r, self.d_model
        fused = t["fused"].reshape(H, 3, r, d)
        bias = t["fused bias"].reshape(H, 3, r)
        dense = t["dense"].reshape(d, H, r)
        for head in range(H):
            weights = [fused[head, part].T for part in range(3)]
            biases = [bias[head, part] + t["beta"] @ weights[part] for part in range(3)]
            folded = [t["gain"][:, None] * weight for weight in weights]
            yield *folded, dense[:, head].T, *biases, t["dense bias"]


def svd(A: np.ndarray, B: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """U (d, r), sigma, Vh (r, d) of A @ B."""
    Q, R = np.linalg.qr(A)
    P, S = np.linalg.qr(B.T)
    u, sigma, vh = np.linalg.svd(R @ S.T)
    return Q @ u, sigma, vh @ P.T


def parts(Z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """self, ortho, rotation of every pair."""
    own, row = np.abs(np.diagonal(Z)), (Z**2).sum(axis=1)
    return own, np.sqrt(1 - row), np.sqrt(row - own**2)


def write_published(folder: Path, falcon: Falcon, layer: int = 13, head: int = 7) -> Path:
    """Write the files of a reference."""
    folder.mkdir(parents=True)
    makeup, counted, shares = ["layer,head,self,ortho,rot"], ["head,bin_index,count"], []
    lines = ["matrix,k,bias_input_side,bias_output_side"]
    place = f"{layer}_{head}"
    for number in range(falcon.layers):
        for h, (W_Q, W_K, W_V, W_O, b_Q, b_K, b_V, b_O) in enumerate(falcon.heads(number)):
            U, sigma, Vh = svd(W_V, W_O)
            Z = Vh @ U
            means = [part.mean() for part in parts(Z)]
            makeup.append(f"{number},{h}," + ",".join(f"{mean:.6f}" for mean in means))
            shares.append(np.array(means) / sum(means))
            if number != layer:
                continue
            counts = np.histogram(sigma * np.diagonal(Z), 100, (-1, 1))[0]
            counted += [f"{h},{i},{count}" for i, count in enumerate(counts) if count]
            if h != head:
                continue
            write_sigma(folder / f"sigma_value_{place}.csv", sigma, Z)
            rows = ["row," + ",".join(f"c{k}" for k in range(len(Z)))]
            rows += [f"{row}," + ",".join(f"{z:.7g}" for z in Z[row]) for row in (0, 1)]
            write(folder / f"z_value_{place}_rows_0_1.csv", rows)
            diagonal = [f"{k},{z:.7g}" for k, z in enumerate(np.diagonal(Z))]
            write(folder / f"z_value_{place}_diagonal.csv", ["k,z_kk", *diagonal])
            lines += bias_rows("value", b_O @ U, Vh @ (b_V @ W_O + b_O))
            U, sigma, Vh = svd(W_Q, W_K.T)
            write_sigma(folder / f"sigma_qk_{place}.csv", sigma, Vh @ U)
            lines += bias_rows("qk", (W_Q @ b_K) @ U, Vh @ (b_Q @ W_K.T))
    write(folder / "value_makeup.csv", makeup)
    write(folder / f"hist_value_{layer}.csv", counted)
    write(folder / f"bias_lines_{place}.csv", lines)
    b, a = np.polyfit(*np.array(shares).T[:2], 1)
    ends = {"first": {"self": 0.0, "ortho": a}, "last": {"self": 1.0, "ortho": a + b}}
    (folder / "value_makeup_random.json").write_text(json.dumps({"linear_fit": ends}))
    return folder


def write_sigma(path: Path, sigma: np.ndarray, Z: np.ndarray) -> None:
    own, ortho, rotation = parts(Z)
    columns = (sigma, sigma * own, sigma * ortho, sigma * rotation)
    rows = [f"{k}," + ",".join(f"{x:.7g}" for x in row) for k, row in enumerate(zip(*columns, strict=True))]
    write(path, ["k,sigma,self_weighted,ortho_weighted,rot_weighted", *rows])


def bias_rows(matrix: str, inputs: np.ndarray, outputs: np.ndarray) -> list[str]:
    return [f"{matrix},{k},{i:.7g},{o:.7g}" for k, (i, o) in enumerate(zip(inputs, outputs, strict=True))]


def write(path: Path, lines: list[str]) -> None:
    path.write_text("\n".join(lines) + "\n")
