"""source.json -> geometry.json: the architecture found, and every tensor's shape checked."""

from collections.abc import Sequence
from dataclasses import replace

from headmaps.architectures import geometry_of
from headmaps.errors import ArchitectureError
from headmaps.geometry import Geometry, write_geometry
from headmaps.records import read_json
from headmaps.steps.command import arguments, step, write_made


def check_matrices(geometry: Geometry, asked: Sequence[str]) -> None:
    """The matrices that the config asks for are those this model has.

    Raises:
        ArchitectureError: one of them is not; the message gives the line to write.
    """
    if unknown := [matrix for matrix in asked if matrix not in geometry.matrices]:
        right = f"matrices: [{', '.join(geometry.matrices)}]"
        raise ArchitectureError(
            f"a {geometry.model_type} model has no {' or '.join(map(repr, unknown))} matrix",
            where="config: matrices",
            expected=right,
            do=f"write `{right}` in the model's entry",
        )


def main(argv: Sequence[str] | None = None) -> None:
    """Run the step."""
    with step("geometry"):
        given = arguments(__doc__, ["--source", "--output"], argv)
        geometry = geometry_of(read_json(given.source))
        check_matrices(geometry, given.spec.get("matrices", ()))
        geometry = replace(geometry, sequence_length=given.spec.get("sequence_length"))
        write_geometry(given.output, geometry)
        write_made(given.output, "geometry", given.spec, [given.source])


if __name__ == "__main__":
    main()
