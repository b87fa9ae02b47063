"""Registered quantities from sigma and Z against their definitions on the d x d matrix; symmetries; planted answers."""

from collections.abc import Callable

import numpy as np
import pytest
import scipy.linalg

from headmaps.baselines import KINDS as BASELINES
from headmaps.baselines import Sampler
from headmaps.decomposition import decompose, pair_quantities
from headmaps.geometry import Geometry, Norm, Position
from headmaps.heads import LayerHeads
from headmaps.layer_factors import LayerFactors
from headmaps.quantities import KINDS, REGISTRY, SPECTRAL_NAMES, HeadPairs, null_names, quantities

D, R = 24, 6


@pytest.fixture
def generator() -> np.random.Generator:
    return np.random.default_rng(20250122)


def random_factors(generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Factors whose subspaces overlap a little more than by chance, so that no quantity sits at an end of its range."""
    A = generator.normal(size=(D, R))
    return A, generator.normal(size=(R, D)) + 0.7 * generator.normal(size=(R, R)) @ A.T


def of_factors(A: np.ndarray, B: np.ndarray) -> dict[str, float]:
    found = decompose(A, B)
    values = quantities(found.sigma, found.Z, found.eigenvalues, rank=found.rank)
    return {name: float(value) for name, value in values.items()}


class Direct:
    """A head's matrix in full, d x d, and its textbook decompositions."""

    def __init__(self, W: np.ndarray, r: int) -> None:
        self.W = W
        U, s, Vh = np.linalg.svd(W)
        self.U, self.s, self.V = U[:, :r], s[:r], Vh[:r].T
        self.P_U, self.P_V = self.U @ self.U.T, self.V @ self.V.T
        self.total = float(np.sum(W**2))
        eigenvalues = np.linalg.eigvals(W)
        self.eigenvalues = eigenvalues[np.argsort(-np.abs(eigenvalues))][:r]
        self.angles = np.degrees(scipy.linalg.subspace_angles(self.U, self.V))

    def along_own(self, x: np.ndarray, own: np.ndarray) -> np.ndarray:
        """Each column of x projected on the direction of the same column of `own`."""
        return own * np.sum(own * x, axis=0)

    def parts(self, x: np.ndarray, own: np.ndarray, P: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Lengths of the parts of x along its own partner, along the others of the subspace, and outside it."""
        mine = self.along_own(x, own)
        return tuple(np.linalg.norm(part, axis=0) for part in (mine, P @ x - mine, x - P @ x))  # type: ignore[return-value]

    def written(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.parts(self.V, self.U, self.P_U)

    def read(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.parts(self.U, self.V, self.P_V)

    def schur_strict_triangle(self) -> float:
        T, _ = scipy.linalg.schur(self.W, output="complex")
        return float(np.linalg.norm(np.triu(T, 1)))

    def commutator(self) -> float:
        return float(np.linalg.norm(self.W @ self.W.T - self.W.T @ self.W))


def entropy_rank(p: np.ndarray) -> float:
    return float(np.exp(-np.sum(p * np.log(p))))


DEFINITIONS: dict[str, Callable[[Direct], float]] = {
    "self_mean": lambda x: x.written()[0].mean(),
    "rotation_mean": lambda x: x.written()[1].mean(),
    "ortho_mean": lambda x: x.written()[2].mean(),
    "overlap_mean": lambda x: np.mean([x.U[:, i] @ x.V[:, i] for i in range(R)]),
    "negative_share": lambda x: np.mean([x.U[:, i] @ x.V[:, i] < 0 for i in range(R)]),
    "input_rotation_mean": lambda x: x.read()[1].mean(),
    "input_ortho_mean": lambda x: x.read()[2].mean(),
    "self_energy": lambda x: np.sum((x.s * x.written()[0]) ** 2) / x.total,
    "rotation_energy": lambda x: np.sum((x.s * x.written()[1]) ** 2) / x.total,
    "ortho_energy": lambda x: np.sum((x.W - x.W @ x.P_U) ** 2) / x.total,
    "input_rotation_energy": lambda x: np.sum((x.s * x.read()[1]) ** 2) / x.total,
    "input_ortho_energy": lambda x: np.sum((x.W - x.P_V @ x.W) ** 2) / x.total,
    "frobenius_norm": lambda x: np.linalg.norm(x.W),
    "spectral_norm": lambda x: np.linalg.norm(x.W, 2),
    "participation": lambda x: np.trace(x.W @ x.W.T) ** 2 / np.trace(x.W @ x.W.T @ x.W @ x.W.T),
    "entropy_rank": lambda x: entropy_rank(np.linalg.eigvalsh(x.W @ x.W.T)[-R:] / x.total),
    "effective_rank": lambda x: entropy_rank(x.s / x.s.sum()),
    "stable_rank": lambda x: np.linalg.norm(x.W) ** 2 / np.linalg.norm(x.W, 2) ** 2,
    "condition_number": lambda x: np.linalg.norm(x.W, 2) * np.linalg.norm(np.linalg.pinv(x.W, rcond=1e-12), 2),
    "trace": lambda x: np.trace(x.W),
    "trace_share": lambda x: np.trace(x.W) / np.linalg.norm(x.W, "nuc"),
    "symmetric_share": lambda x: np.sum(((x.W + x.W.T) / 2) ** 2) / x.total,
    "subspace_overlap": lambda x: np.trace(x.P_U @ x.P_V) / R,
    "commutator_norm": lambda x: x.commutator(),
    "commutator_share": lambda x: x.commutator() / x.total,
    "principal_angle_min": lambda x: x.angles.min(),
    "principal_angle_mean": lambda x: x.angles.mean(),
    "principal_angle_max": lambda x: x.angles.max(),
    "eigenvalue_positivity": lambda x: np.mean(x.eigenvalues.real > 0),
    "eigenvalue_balance": lambda x: np.trace(x.W) / np.abs(x.eigenvalues).sum(),
    "spectral_radius": lambda x: np.abs(x.eigenvalues).max(),
    "imaginary_share": lambda x: np.sum(x.eigenvalues.imag**2) / np.sum(np.abs(x.eigenvalues) ** 2),
    "henrici": lambda x: x.schur_strict_triangle(),
    "henrici_share": lambda x: x.schur_strict_triangle() / np.linalg.norm(x.W),
}


def test_every_quantity_has_a_definition_to_be_checked_against() -> None:
    assert set(DEFINITIONS) == set(REGISTRY)


@pytest.mark.parametrize("name", DEFINITIONS)
def test_quantity_is_what_its_definition_says_on_the_full_matrix(name: str, generator: np.random.Generator) -> None:
    for _ in range(3):
        A, B = random_factors(generator)
        expected = float(DEFINITIONS[name](Direct(A @ B, R)))
        assert of_factors(A, B)[name] == pytest.approx(expected, rel=1e-8, abs=1e-10)


def test_no_quantity_depends_on_how_the_matrix_is_split_into_factors(generator: np.random.Generator) -> None:
    A, B = random_factors(generator)
    left, right = (np.linalg.qr(generator.normal(size=(R, R)))[0] for _ in range(2))
    G = left * np.geomspace(1, 100, R) @ right
    assert of_factors(A @ G, np.linalg.solve(G, B)) == pytest.approx(of_factors(A, B), rel=1e-7, abs=1e-8)


def test_no_quantity_depends_on_the_basis_of_the_residual_stream(generator: np.random.Generator) -> None:
    A, B = random_factors(generator)
    basis, _ = np.linalg.qr(generator.normal(size=(D, D)))
    assert of_factors(basis @ A, B @ basis.T) == pytest.approx(of_factors(A, B), rel=1e-9, abs=1e-9)


def test_transposing_the_matrix_exchanges_input_and_output_side(generator: np.random.Generator) -> None:
    A, B = random_factors(generator)
    forward, backward = of_factors(A, B), of_factors(B.T, A.T)
    assert {REGISTRY[name].counterpart(): value for name, value in forward.items()} == pytest.approx(backward, rel=1e-9)
    # ortho's mean does change: the orientation of the matrix is not a convention without consequence
    assert abs(forward["ortho_mean"] - backward["ortho_mean"]) > 1e-4


@pytest.mark.parametrize("factor", [0.01, 7.0])
def test_quantities_scale_with_the_weights_by_their_degree(factor: float, generator: np.random.Generator) -> None:
    A, B = random_factors(generator)
    expected = {name: value * factor ** REGISTRY[name].degree for name, value in of_factors(A, B).items()}
    assert of_factors(factor * A, B) == pytest.approx(expected, rel=1e-9)


def test_a_projector_is_all_self(generator: np.random.Generator) -> None:
    U, _ = np.linalg.qr(generator.normal(size=(D, R)))
    found = of_factors(U * np.arange(1, R + 1), U.T)
    ones = ("self_mean", "self_energy", "overlap_mean", "trace_share", "symmetric_share", "eigenvalue_positivity")
    zeros = ("rotation_mean", "ortho_energy", "negative_share", "imaginary_share", "input_rotation_energy")
    assert [found[name] for name in ones] == pytest.approx([1] * len(ones))
    assert [found[name] for name in zeros] == pytest.approx([0] * len(zeros), abs=1e-12)
    assert found["trace"] == pytest.approx(R * (R + 1) / 2)
    # these subtract numbers that nearly cancel, so that rounding shows as its square root
    assert [found["henrici_share"], found["commutator_share"], found["ortho_mean"]] == pytest.approx([0] * 3, abs=1e-6)


def test_a_projectors_negative_copies_nothing_and_inverts_all(generator: np.random.Generator) -> None:
    U, _ = np.linalg.qr(generator.normal(size=(D, R)))
    found = of_factors(U * np.arange(1, R + 1), -U.T)
    assert found["negative_share"] == 1
    assert found["overlap_mean"] == pytest.approx(-1)
    assert found["eigenvalue_positivity"] == 0
    assert found["eigenvalue_balance"] == pytest.approx(-1)
    assert found["symmetric_share"] == pytest.approx(1)


def test_orthogonal_subspaces_are_all_ortho_and_nilpotent(generator: np.random.Generator) -> None:
    both, _ = np.linalg.qr(generator.normal(size=(D, 2 * R)))
    found = of_factors(both[:, :R] * np.arange(1, R + 1), both[:, R:].T)
    assert [found[name] for name in ("ortho_mean", "ortho_energy", "henrici_share")] == pytest.approx([1] * 3)
    assert found["principal_angle_min"] == pytest.approx(90)
    assert found["symmetric_share"] == pytest.approx(0.5)
    assert found["spectral_radius"] == pytest.approx(0, abs=1e-12)


def test_a_cycle_inside_one_subspace_is_all_rotation(generator: np.random.Generator) -> None:
    U, _ = np.linalg.qr(generator.normal(size=(D, R)))
    found = of_factors(U * np.arange(1, R + 1), np.roll(U, 1, axis=1).T)
    assert [found[name] for name in ("rotation_mean", "rotation_energy")] == pytest.approx([1, 1])
    assert found["subspace_overlap"] == pytest.approx(1)
    assert found["principal_angle_max"] == pytest.approx(0, abs=1e-5)
    assert found["trace"] == pytest.approx(0, abs=1e-10)


def test_a_skew_matrix_only_turns(generator: np.random.Generator) -> None:
    U, _ = np.linalg.qr(generator.normal(size=(D, R)))
    turn = np.kron(np.diag([3.0, 2.0, 1.0]), [[0, 1], [-1, 0]])
    found = of_factors(U @ turn, U.T)
    assert found["symmetric_share"] == pytest.approx(0, abs=1e-12)
    assert found["imaginary_share"] == pytest.approx(1)
    assert found["commutator_share"] == pytest.approx(0, abs=1e-6)


def test_equal_singular_values_fill_every_rank_and_one_alone_fills_one() -> None:
    names = ("participation", "entropy_rank", "effective_rank", "stable_rank")
    Z = np.eye(R)
    even = quantities(np.ones(R), Z, names=names)
    single = quantities(np.array([5.0] + [1e-9] * (R - 1)), Z, names=names)
    assert [float(even[name]) for name in names] == pytest.approx([R] * 4)
    assert [float(single[name]) for name in names] == pytest.approx([1] * 4, abs=1e-6)


def test_pairs_beyond_the_rank_do_not_count(generator: np.random.Generator) -> None:
    A, B = random_factors(generator)
    deficient = of_factors(np.hstack([A, A[:, :2]]), np.vstack([B, B[:2]]))
    plain = of_factors(A + np.hstack([A[:, :2], np.zeros((D, R - 2))]), B)
    assert deficient == pytest.approx(plain, rel=1e-8, abs=1e-9)
    # whatever stands beyond the rank, even NaN, is not looked at
    sigma, Z = np.array([2.0, 1.0, 0.0]), np.full((3, 3), np.nan)
    Z[:2, :2] = [[0.5, 0.1], [0.2, -0.3]]
    cut, whole = quantities(sigma, Z, rank=2), quantities(sigma[:2], Z[:2, :2])
    assert {name: float(value) for name, value in cut.items()} == pytest.approx(
        {name: float(value) for name, value in whole.items()}
    )


def test_an_all_zero_head_has_no_values_but_its_size() -> None:
    found = quantities(np.zeros((2, R)), np.zeros((2, R, R)))
    sizes = {"frobenius_norm", "spectral_norm", "trace", "commutator_norm", "spectral_radius", "henrici"}
    for name, values in found.items():
        assert values.shape == (2,)
        assert (values == 0).all() if name in sizes else np.isnan(values).all(), name


def test_batches_of_any_shape_give_the_heads_one_by_one(generator: np.random.Generator) -> None:
    heads = [decompose(*random_factors(generator)) for _ in range(6)]
    sigma = np.stack([head.sigma for head in heads]).reshape(2, 3, R)
    Z = np.stack([head.Z for head in heads]).reshape(2, 3, R, R)
    together = quantities(sigma, Z)
    for number, head in enumerate(heads):
        alone = quantities(head.sigma, head.Z)
        for name in REGISTRY:
            assert together[name].reshape(-1)[number] == pytest.approx(float(alone[name]), rel=1e-12)


def test_given_eigenvalues_may_come_in_any_order(generator: np.random.Generator) -> None:
    head = decompose(*random_factors(generator))
    names = null_names("gaussian", ("eigenvalues",))
    shuffled = quantities(head.sigma, head.Z, generator.permutation(head.eigenvalues), names)
    computed = quantities(head.sigma, head.Z, names=names)
    for name in names:
        assert shuffled[name] == pytest.approx(float(computed[name])), name


def test_pairs_agree_with_the_decompositions_own_parts(generator: np.random.Generator) -> None:
    head = decompose(*random_factors(generator))
    pairs = HeadPairs(head.sigma, head.Z)
    mine = pairs.overlap, np.sqrt(pairs.self2), np.sqrt(pairs.rotation2), np.sqrt(pairs.ortho2)
    for own, theirs in zip(mine, pair_quantities(head.Z), strict=True):
        np.testing.assert_allclose(own, theirs, atol=1e-14)


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"needs \(2, 3, 3\)"):
        quantities(np.ones((2, 3)), np.ones((2, 3, 2)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_baseline_asks_exactly_of_the_quantities_that_it_lets_vary(kind: str, generator: np.random.Generator) -> None:
    shapes = {"W_Q": (8, D, R), "W_K": (8, D, R), "W_V": (8, D, R), "W_O": (8, R, D)}
    heads = LayerHeads(**{name: generator.normal(size=shape) for name, shape in shapes.items()})
    geometry = Geometry("made", "split", [0], 1, D, 8, 8, R, R, "F32", 1.0, Position("none"), Norm("rms", "pre"))
    sigma, Z = BASELINES[kind].draw(Sampler(LayerFactors(heads, geometry, "value"), (0, "made", 0), 7), 0)
    for name, draws in quantities(sigma, Z).items():
        varies = np.ptp(draws) > 1e-9 * np.abs(draws).max()
        assert varies == (kind in REGISTRY[name].nulls), name


def test_names_for_a_baseline_can_be_limited_by_cost() -> None:
    cheap, all_names = null_names("gaussian"), null_names("gaussian", ("products", "svd", "eigenvalues"))
    assert set(cheap) < set(all_names) == set(REGISTRY)
    assert not set(SPECTRAL_NAMES) & set(null_names("spectrum", ("products", "svd", "eigenvalues")))
    with pytest.raises(KeyError):
        null_names("unheard-of")
