"""``stateline ui``: the dashboard of some roots, as pages on this machine."""

from __future__ import annotations

from contextlib import ExitStack, closing

import click

from stateline.cli.output import store_option
from stateline.dashboard.roots import RootFollower
from stateline.environment import system_environment
from stateline.extras import extra_module

__all__ = ["ui"]

_PORT = 8642


@click.command()
@click.argument("roots", nargs=-1, required=True, metavar="ROOT...")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option("--port", default=_PORT, show_default=True, type=click.IntRange(0, 65535), help="0 for any free one.")
@click.option(
    "--token",
    envvar="STATELINE_UI_TOKEN",
    help="What a browser must bring, where --host is not a loopback address. Default: a new one at each start.",
)
@store_option
def ui(roots: tuple[str, ...], host: str, port: int, token: str | None, options: dict[str, str]) -> None:
    """Show what roots hold in a browser: checkpoints, state, event time, outputs, a key, differences.

    Reads records only, so it works beside any driver, after its death, and from another machine. Ends with Ctrl-C.
    """
    server = extra_module("stateline.dashboard.server", "ui", subject="stateline ui")
    if not server.is_loopback(host):
        token = token or system_environment().ids.new_id()

    def is_ready(address: str, bound: int) -> None:
        place = f"[{address}]" if ":" in address else address
        click.echo(f"http://{place}:{bound}/" + (f"?token={token}" if token else ""))

    with ExitStack() as stack:
        followers = [stack.enter_context(closing(RootFollower(root, options))) for root in roots]
        server.serve(server.dashboard_app(followers, token=token), host, port, is_ready)
