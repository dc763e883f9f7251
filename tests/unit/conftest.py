"""What tests of several modules look at."""

import threading

import pytest

from fsstore.chunk.read import reader as reading


@pytest.fixture
def decoding_threads(monkeypatch):
    """Return the threads that decode, as they come."""
    seen = []
    decode = reading.decode

    def noting(window, answers):
        seen.append(threading.current_thread())
        decode(window, answers)

    monkeypatch.setattr(reading, "decode", noting)
    return seen
