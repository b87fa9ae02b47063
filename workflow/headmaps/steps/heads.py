"""One layer in the normal form -> W_Q.npy W_K.npy W_V.npy W_O.npy extras.npz and their record."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headmaps.architectures import is_transposed, roles_of_source
from headmaps.checkpoint.dtypes import decode
from headmaps.checkpoint.formats.safetensors import read_header
from headmaps.checkpoint.store import LocalStore
from headmaps.errors import CheckpointError
from headmaps.geometry import read_geometry
from headmaps.heads import LayerTensors, write_layer_heads
from headmaps.records import read_json, write_record
from headmaps.steps.command import arguments, step, write_made


def tensors_of_layer(file: Path, source: dict[str, Any], layer: int) -> LayerTensors:
    """The tensors of a layer file by role, read one at a time.

    Raises:
        CheckpointError: the file is malformed, or one of the layer's tensors is not in it.
    """
    roles = roles_of_source(source)
    store = LocalStore(file)
    entries = read_header(store, file.name)
    names = roles["layers"][layer] | roles["shared"]
    if missing := sorted(name for name in names.values() if name not in entries):
        raise CheckpointError(
            f"layer {layer}: the layer file lacks the tensor {missing[0]}",
            where=str(file),
            do=f"delete {file} and its record and run snakemake",
        )

    def read(name: str) -> Any:
        entry = entries[name]
        return decode(store.read(file.name, entry.offset, entry.nbytes), entry.dtype, entry.shape)

    return LayerTensors(names, read, str(file), layer)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the step."""
    with step("heads"):
        flags = ["--geometry", "--source", "--checkpoint", "--layer", "--directory", "--record"]
        given = arguments(__doc__, flags, argv)
        source = read_json(given.source)
        tensors = tensors_of_layer(given.checkpoint, source, given.layer)
        geometry = read_geometry(given.geometry)
        files = write_layer_heads(given.directory, tensors, geometry, is_transposed(source))
        write_record(given.record, "heads", given.spec, files)
        write_made(given.record, "heads", given.spec, [given.geometry, given.checkpoint.with_suffix(".json")])


if __name__ == "__main__":
    main()
