"""Commands that show pages: view."""

from __future__ import annotations

import sys
from argparse import Namespace

from fsstore.command.output import put
from fsstore.command.places import context_of, place_of

__all__ = ["view"]


def view(arguments: Namespace) -> int:
    """Serve the page of a place until it is interrupted."""
    from fsstore.viewer.door import page_server

    context = context_of(arguments) if arguments.context else None
    server = page_server(place_of(arguments), context=context, port=arguments.port)
    put(server.url)
    sys.stdout.flush()
    if sys.stdout.isatty() and not arguments.no_browser:
        import webbrowser

        webbrowser.open(server.url)
    with server:
        server.serve_forever()
    return 0
