"""geometry.json: a round trip, what differs by layer, and which head uses which key."""

from dataclasses import replace
from pathlib import Path

import pytest

from headmaps.errors import ArchitectureError, ResultError
from headmaps.geometry import Geometry, Norm, Position, QKNorm, Rotary, read_geometry, write_geometry
from headmaps.records import read_json, write_json

PLAIN = Geometry(
    model_type="llama",
    layout="separate",
    layers=[3, 7],
    n_layers=8,
    d_model=48,
    n_heads=4,
    n_kv_heads=2,
    d_head=16,
    d_head_v=16,
    dtype="BF16",
    scale=0.25,
    position=Position("rotary", {"default": Rotary("half", 16, 10000.0)}),
    norm=Norm("rms", "pre", epsilon=1e-6),
)
VARIED = replace(
    PLAIN,
    scale=[0.25, 0.125],
    position=Position(
        "rotary",
        {"full": Rotary("half", 8, 1e6, {"type": "yarn", "factor": 4.0}, 1.13863)},
        {3: None, 7: "full"},
    ),
    windows=[512, None],
    qk_norm=QKNorm("rms", "head", plus_one=True, epsilon=1e-6),
)
LATENT = replace(PLAIN, n_kv_heads=4, d_head=14, d_head_v=10, d_head_rope=8, matrices=["value", "qk_nope", "qk_rope"])


@pytest.mark.parametrize("geometry", [PLAIN, VARIED, LATENT], ids=["plain", "varied", "latent"])
def test_a_geometry_survives_its_file(geometry: Geometry, tmp_path: Path) -> None:
    write_geometry(tmp_path / "geometry.json", geometry)
    assert read_geometry(tmp_path / "geometry.json") == geometry


def test_a_file_of_another_version_is_refused(tmp_path: Path) -> None:
    write_geometry(tmp_path / "geometry.json", PLAIN)
    write_json(tmp_path / "geometry.json", read_json(tmp_path / "geometry.json") | {"d_tail": 3})
    with pytest.raises(ResultError, match="d_tail"):
        read_geometry(tmp_path / "geometry.json")


def test_a_file_that_lacks_something_is_refused(tmp_path: Path) -> None:
    write_geometry(tmp_path / "geometry.json", PLAIN)
    value = read_json(tmp_path / "geometry.json")
    del value["d_model"]
    write_json(tmp_path / "geometry.json", value)
    with pytest.raises(ResultError, match="d_model"):
        read_geometry(tmp_path / "geometry.json")


def test_what_differs_by_layer_is_asked_for_by_layer() -> None:
    assert [VARIED.scale_of(layer) for layer in (3, 7)] == [0.25, 0.125]
    assert [VARIED.window_of(layer) for layer in (3, 7)] == [512, None]
    assert VARIED.rotary_of(3) is None
    assert VARIED.rotary_of(7) == VARIED.position.rotary["full"]
    assert [PLAIN.scale_of(layer) for layer in (3, 7)] == [0.25, 0.25]
    assert PLAIN.window_of(3) is None
    assert PLAIN.rotary_of(7) == PLAIN.position.rotary["default"]


def test_consecutive_query_heads_share_a_key_head() -> None:
    """`h // (H // KV)`; the remainder `h % KV` would give 0, 1, 0, 1."""
    assert [PLAIN.group_of(h) for h in range(4)] == [0, 0, 1, 1]


def test_the_rotated_key_of_latent_attention_is_one_for_all_heads() -> None:
    assert [LATENT.group_of(h, "qk_rope") for h in range(4)] == [0, 0, 0, 0]
    assert [LATENT.group_of(h, "qk_nope") for h in range(4)] == [0, 1, 2, 3]
    assert {name: LATENT.rank_of(name) for name in LATENT.matrices} == {"value": 10, "qk_nope": 6, "qk_rope": 8}


@pytest.mark.parametrize(("geometry", "matrix"), [(PLAIN, "qk_rope"), (LATENT, "qk"), (PLAIN, "ov")])
def test_a_matrix_that_the_model_has_not_is_refused_with_those_it_has(geometry: Geometry, matrix: str) -> None:
    with pytest.raises(ArchitectureError, match=matrix) as error:
        geometry.rank_of(matrix)
    assert ", ".join(geometry.matrices) in str(error.value)


@pytest.mark.parametrize("n_kv_heads", [3, 0, 8])
def test_heads_that_cannot_be_shared_out_are_refused(n_kv_heads: int) -> None:
    with pytest.raises(ArchitectureError, match=f"4 query heads cannot be shared out among {n_kv_heads}"):
        replace(PLAIN, n_kv_heads=n_kv_heads)
