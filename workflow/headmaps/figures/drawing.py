"""From a request to files: which sheets a call of the figure step draws, and in which file each one goes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headmaps.errors import ResultError
from headmaps.figures import captions, names
from headmaps.figures.data import HeadsTable, arrays, check_head, chosen_role, pairs_in_use
from headmaps.figures.style import Sheet, note, save, save_pages

_DECOMPOSITION = ("sigma", "Z", "rank", "comparable", "precision_sigma")


@dataclass(frozen=True)
class Request:
    """One call of the figure step.

    Attributes:
        spec: the step's spec. geometry, source: the model's, as plain JSON.
        table: heads.csv. decompositions: (matrix, layer) -> npz.
        states: layer -> (input, output) .npy. heads: layer -> folder of head matrices.
        outputs: file name relative to the treatment's folder -> path.
    """

    spec: Mapping[str, Any]
    geometry: Mapping[str, Any]
    source: Mapping[str, Any]
    table: Path | None
    decompositions: Mapping[tuple[str, int], Path]
    states: Mapping[int, tuple[Path, Path]]
    heads: Mapping[int, Path]
    outputs: Mapping[str, Path]

    @classmethod
    def of(
        cls,
        spec: Mapping[str, Any],
        geometry: Mapping[str, Any],
        source: Mapping[str, Any],
        *,
        table: Path | None,
        decompositions: Sequence[Path],
        states: Sequence[Path],
        heads: Sequence[Path],
        outputs: Sequence[Path],
    ) -> "Request":
        """Match the files of the command line with what the spec asks for.

        Raises:
            ResultError: their numbers or names do not fit the spec.
        """
        figure, layers, matrices = spec["figure"], list(spec["layers"]), list(spec["matrices"])
        last = int(max(geometry["layers"]))
        wanted = names.outputs(figure, layers, matrices, spec.get("heads", "auto"), spec["formats"], last)
        places = [(matrix, layer) for matrix in matrices for layer in layers]
        if [path.as_posix()[-len(name) :] for path, name in zip(outputs, wanted, strict=False)] != wanted:
            what = "the figure's output files are not those of its spec"
            raise ResultError(what, where=figure, expected=captions.listed(wanted))
        for kind, paths, number in (
            ("decompositions", decompositions, len(places)),
            ("files of hidden states", states, 2 * len(layers) if states else 0),
            ("folders of heads", heads, len(layers) if states else 0),
        ):
            if len(paths) != number:
                raise ResultError(f"{len(paths)} {kind} were given", where=figure, expected=str(number))
        return cls(
            spec,
            geometry,
            source,
            table,
            dict(zip(places, decompositions, strict=True)),
            {layer: (states[2 * i], states[2 * i + 1]) for i, layer in enumerate(layers)} if states else {},
            dict(zip(layers, heads, strict=True)) if states else {},
            dict(zip(wanted, outputs, strict=True)),
        )

    @property
    def model(self) -> str:
        """The model's name."""
        return str(self.spec["model"])

    def frame(self, matrix: str) -> str:
        """The first sentences of a caption."""
        return captions.frame(self.model, self.source, self.geometry, self.spec["layer_norm"], matrix)

    def heads_table(self) -> HeadsTable:
        """heads.csv."""
        if self.table is None:
            raise ResultError("this figure needs heads.csv and was not given it", where=self.spec["figure"])
        return HeadsTable(self.table)

    def files(self, matrix: str, place: str = "") -> list[Path]:
        """The paths of one sheet, one a format."""
        start = names.output_name(self.spec["figure"], matrix, place) + "."
        return [path for name, path in self.outputs.items() if name.startswith(start)]

    def layer_name(self, layer: int) -> str:
        """`layer-03`."""
        return names.layer_name(layer, int(max(self.geometry["layers"])))


@dataclass(frozen=True)
class Drawn:
    """A sheet (or the pages of a PDF), the files it goes to, and facts about it for the record."""

    sheet: Sheet | Iterator[Sheet]
    paths: list[Path]
    facts: dict[str, Any]


def draw_all(request: Request) -> dict[str, Any]:
    """Draw and write everything a request asks for; returns the captions and facts for the record."""
    facts: dict[str, Any] = {}
    for drawn in _DRAWERS[request.spec["figure"]](request):
        if isinstance(drawn.sheet, Sheet):
            save(drawn.sheet, drawn.paths)
            caption = drawn.sheet.caption
        else:
            title = f"{request.model}, {drawn.paths[0].stem}"
            caption = save_pages(drawn.sheet, drawn.paths[0], title)
        facts |= {path.name: {"caption": caption, **drawn.facts} for path in drawn.paths}
    return facts


def _histograms(request: Request) -> Iterator[Drawn]:
    from headmaps.figures import histogram

    weighted = request.spec.get("histogram", "weighted") == "weighted"
    for (matrix, layer), path in request.decompositions.items():
        found = arrays(path, _DECOMPOSITION)
        used = pairs_in_use(found)
        values = histogram.overlaps(found["sigma"], found["Z"], used, weighted)
        mixed = histogram.unresolved_pairs(found, used)
        frame = request.frame(matrix)
        sheet = histogram.draw(values, request.model, layer, matrix, weighted, frame, request.geometry, mixed)
        yield Drawn(sheet, request.files(matrix, request.layer_name(layer)), histogram.facts(values))


def _ternary(request: Request) -> Iterator[Drawn]:
    from headmaps.figures import ternary

    table, kinds = request.heads_table(), request.spec.get("baselines", [])
    random = "gaussian" if "gaussian" in kinds else None
    for matrix in request.spec["matrices"]:
        found = ternary.points(table, matrix, _closed_form(request, matrix), random)
        sheet = ternary.draw(found, request.model, matrix, request.frame(matrix), random, request.geometry)
        facts = {"heads": len(found.layer), "line": list(found.line) if found.line else None}
        yield Drawn(sheet, request.files(matrix), facts)


def _closed_form(request: Request, matrix: str) -> tuple[float, float, float]:
    from headmaps.geometry import Geometry
    from headmaps.haar import haar_means

    geometry = Geometry.from_json(dict(request.geometry))
    own, rotation, ortho = haar_means(geometry.d_model, geometry.rank_of(matrix))
    return own, ortho, rotation


_ROLE_TEXTS = {
    "most-self": "largest mean self of all heads",
    "median-self": "median mean self of all heads",
    "least-self": "smallest mean self of all heads",
}


def _effects(request: Request) -> Iterator[Drawn]:
    heads = request.spec["heads"]
    if heads == "all":
        number = request.geometry["n_heads"]
        for matrix, layer in request.decompositions:
            pages = (_effect_sheet(request, matrix, layer, head) for head in range(number))
            yield Drawn(pages, request.files(matrix, request.layer_name(layer)), {"layer": layer, "pages": number})
        return
    if heads == "auto":
        table = request.heads_table()
        for role in names.ROLES:
            for matrix in request.spec["matrices"]:
                chosen = chosen_role(table, matrix, role)
                if chosen is None:
                    yield Drawn(_no_head(request, matrix), request.files(matrix, role), {})
                else:
                    yield _effect(request, matrix, *chosen, role, _ROLE_TEXTS[role])
        return
    for layer, head in names.pairs(heads):
        for matrix in request.spec["matrices"]:
            yield _effect(request, matrix, layer, head, f"{request.layer_name(layer)}-head-{head:02d}", "")


def _no_head(request: Request, matrix: str) -> Sheet:
    title = f"{request.model}: {captions.matrix_name(matrix)}"
    return note(title, f"{request.frame(matrix)} {captions.no_self(request.geometry)}", captions.NO_SELF)


def _effect(request: Request, matrix: str, layer: int, head: int, place: str, role: str) -> Drawn:
    sheet = _effect_sheet(request, matrix, layer, head, role)
    return Drawn(sheet, request.files(matrix, place), {"layer": layer, "head": head})


def _effect_sheet(request: Request, matrix: str, layer: int, head: int, role: str = "") -> Sheet:
    from headmaps.figures import effect

    check_head(layer, head, request.geometry["n_heads"], request.model)
    found = arrays(request.decompositions[matrix, layer], None)
    one = effect.head_effect(found, head, _bands(request, matrix, layer, head))
    title = f"{request.model}: Layer {layer} | Head {head}, {captions.matrix_name(matrix)}"
    text = effect.caption(one, request.frame(matrix), matrix, request.geometry, role)
    return effect.draw(one, title, text)


def _bands(request: Request, matrix: str, layer: int, head: int) -> Any:
    if layer not in request.states:
        return None
    from headmaps.figures.bands import head_bands
    from headmaps.geometry import Geometry

    geometry = Geometry.from_json(dict(request.geometry))
    return head_bands(request.heads[layer], geometry, request.spec["layer_norm"], matrix, head, *request.states[layer])


def _all_heads(table_name: str) -> Callable[[Request], Iterator[Drawn]]:
    def drawn(request: Request) -> Iterator[Drawn]:
        from importlib import import_module

        module = import_module(f"headmaps.figures.{table_name}")
        table, kinds = request.heads_table(), list(request.spec.get("baselines", []))
        for matrix in request.spec["matrices"]:
            sheet = module.draw(table, matrix, request.model, kinds, request.frame(matrix), request.geometry)
            yield Drawn(sheet, request.files(matrix), {})

    return drawn


_DRAWERS: dict[str, Callable[[Request], Iterator[Drawn]]] = {
    "figure1": _histograms,
    "figure2": _ternary,
    "figure3": _effects,
    "figure4": _histograms,
    "figure5": _effects,
    "heatmaps": _all_heads("heatmaps"),
    "profiles": _all_heads("profiles"),
    "nulls": _all_heads("nulls"),
}
