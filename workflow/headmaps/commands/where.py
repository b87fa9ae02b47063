"""`headmaps where`: list where the results of the configuration are."""

import argparse
from pathlib import Path

from headmaps.commands.common import add_config_argument, configured
from headmaps.plan import RESULTS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of this subcommand."""
    add_config_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print, for every model, its page, tables and figures and whether they are there."""
    plan = configured(arguments)
    complete = True
    for model in plan.models:
        print(f"\n{model}")
        page = Path(RESULTS, model, "atlas.html")
        rows = [("atlas", page, page.is_file())]
        for layer_norm in plan.config.layer_norm:
            tables = Path(RESULTS, model, layer_norm, "tables")
            figures = Path(RESULTS, model, layer_norm, "figures")
            drawn = [
                Path(RESULTS, model, layer_norm, output) for job in plan.figure_jobs_of(model) for output in job.outputs
            ]
            found = sum(file.is_file() for file in drawn)
            rows.append((f"tables ({layer_norm})", tables, (tables / "heads.csv").is_file()))
            rows.append((f"figures ({layer_norm})", figures, found == len(drawn)))
        for label, path, there in rows:
            print(f"  {label:<16} {path}{'' if there else '   (not complete: run snakemake)'}")
            complete = complete and there
    return 0 if complete else 1
