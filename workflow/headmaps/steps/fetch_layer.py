"""Bring one layer's tensors into the normal form: one safetensors file, whatever the checkpoint's source and format."""

from collections.abc import Sequence

from headmaps.checkpoint import layers
from headmaps.checkpoint.sources import report, store_of
from headmaps.records import read_json, write_record
from headmaps.steps.command import arguments, step, write_made


def main(argv: Sequence[str] | None = None) -> None:
    """Run the step."""
    with step("fetch_layer"):
        options = arguments(__doc__, ["--source", "--layer", "--output", "--record"], argv)
        source = read_json(options.source)
        identity = layers.identity_of(source, options.layer)
        # whole files are here and were checked against the Hub's hash: better than bytes that were fetched by range
        whole = options.spec.get("fetch") == "full"
        facts = layers.take_kept(options.output, identity) if identity and not whole else None
        if facts is None:
            earlier = layers.hashes_kept(options.output, identity) if identity else None
            # the source record decides what is read, the entry only how and, on this machine, where: `fetch: full`
            # reads the fetched files
            place = {"path": options.spec["path"]} if "path" in options.spec else {}
            store = store_of({**options.spec, **source, **place}, options.source.parent, f"layer {options.layer}")
            facts = layers.fetch_layer(source, options.layer, store, options.output, earlier)
            report(store)
            if identity:
                layers.keep(options.output, identity, facts)
        write_record(options.record, "fetch_layer", options.spec, {options.output.name: options.output}, facts)
        write_made(options.record, "fetch_layer", options.spec, [options.source])


if __name__ == "__main__":
    main()
