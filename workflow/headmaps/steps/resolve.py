"""Find the tensors a model's layers need, from the checkpoint's headers: file, type, shape and offset of each."""

from collections.abc import Sequence

from headmaps.checkpoint.sources import report
from headmaps.records import write_json
from headmaps.steps.command import arguments, step, write_made


def main(argv: Sequence[str] | None = None) -> None:
    """Run the step."""
    with step("resolve"):
        from headmaps.resolution import resolved

        options = arguments(__doc__, ["--files?", "--source"], argv)
        checkpoint = options.files.parent if options.files else options.source.parent
        record, store = resolved(options.spec, checkpoint)
        write_json(options.source, record)
        write_made(options.source, "resolve", options.spec, [options.files] if options.files else [])
        report(store)


if __name__ == "__main__":
    main()
