"""moto, with conditional writes that are atomic, as they are in a cloud: `python atomic_moto.py PORT`.

moto looks at the condition of a write, and stores the value later, in threads that know nothing of each other: under
load two writes to one key find the same generation, both succeed, and one is lost.  Here one write follows another.
"""

from __future__ import annotations

import io
import sys
import threading

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple

WRITES = {"PUT", "POST", "DELETE"}


class OneWriteAtATime:
    """The application, whose writes wait for each other; their bodies have arrived before."""

    def __init__(self, application):
        """Wrap an application."""
        self._application = application
        self._lock = threading.Lock()

    def __call__(self, environ, start_response):
        """Answer a request."""
        if environ["REQUEST_METHOD"] not in WRITES:
            return self._application(environ, start_response)
        length = environ.get("CONTENT_LENGTH")
        if length:  # one slow sender must not hold up the others
            environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(int(length)))
        with self._lock:
            return list(self._application(environ, start_response))


if __name__ == "__main__":
    moto = DomainDispatcherApplication(create_backend_app)
    run_simple("127.0.0.1", int(sys.argv[1]), OneWriteAtATime(moto), threaded=True, request_handler=MotoRequestHandler)
