"""What several subcommands share: the configuration as Snakemake would read it."""

import argparse
from pathlib import Path
from typing import Any

from headmaps.config import Config, read_config
from headmaps.errors import ConfigError
from headmaps.plan import LOCK, Plan

DEFAULT_CONFIG = "config/config.yaml"


def add_config_argument(parser: argparse.ArgumentParser) -> None:
    """`--configfile`, as Snakemake has it."""
    parser.add_argument(
        "--configfile",
        action="append",
        default=[],
        metavar="FILE",
        help=f"config file, merged over {DEFAULT_CONFIG} as Snakemake does; may be repeated",
    )


def configured(arguments: argparse.Namespace) -> Plan:
    """The plan of the configuration that Snakemake would run with the same `--configfile`.

    Raises:
        ConfigError: no config file, or a mistake in it.
    """
    files = [DEFAULT_CONFIG, *arguments.configfile]
    raw: dict[str, Any] = {}
    for file in files:
        _merge(raw, _read_yaml(file))
    config: Config = read_config(raw, files)
    return Plan.of(config, LOCK)


def _read_yaml(file: str) -> dict[str, Any]:
    import yaml

    try:
        value = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except FileNotFoundError:
        do = "run from the project's folder, or name a file with --configfile"
        raise ConfigError("there is no such config file", where=file, do=do) from None
    except yaml.YAMLError as error:
        raise ConfigError(f"not valid YAML: {error}", where=file) from None
    if not isinstance(value, dict):
        raise ConfigError("not a mapping of keys to values", where=file)
    return value


def _merge(base: dict[str, Any], over: dict[str, Any]) -> None:
    """Snakemake's rule for several config files: mappings merge, everything else is replaced."""
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            _merge(base[key], value)
        else:
            base[key] = value
