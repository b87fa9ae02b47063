"""Find the tensors a model's layers need, from the checkpoint's headers: file, type, shape and offset of each."""

from collections.abc import Sequence

from headmaps.checkpoint.catalogue import open_checkpoint
from headmaps.checkpoint.resolve import source_record
from headmaps.checkpoint.sources import file_of, report, store_of
from headmaps.records import write_json
from headmaps.steps.command import arguments, step, write_made


def main(argv: Sequence[str] | None = None) -> None:
    """Run the step."""
    with step("resolve"):
        from headmaps.architectures import chosen_layers, tensors_needed

        options = arguments(__doc__, ["--files?", "--source"], argv)
        checkpoint = options.files.parent if options.files else options.source.parent
        store = store_of(options.spec, checkpoint)
        catalogue = open_checkpoint(store, file_of(options.spec, store))
        spec = options.spec
        layers = chosen_layers(catalogue.config, spec["layers"], spec.get("stack"), spec.get("tower"))
        write_json(options.source, source_record({**spec, "layers": layers}, catalogue, tensors_needed))
        write_made(options.source, "resolve", spec, [options.files] if options.files else [])
        report(store)


if __name__ == "__main__":
    main()
