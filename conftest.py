"""What holds for every test: no network beyond this machine, reproducible examples, nobody's credentials."""

from __future__ import annotations

import ipaddress
import os
import socket

import hypothesis
import pytest

hypothesis.settings.register_profile(
    "default",
    max_examples=40,
    deadline=None,  # the machines that run this are shared
    derandomize=True,  # a failure of `make test` is a failure for everyone
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile(
    "long", max_examples=2000, deadline=None, print_blob=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# Client libraries would otherwise ask the metadata service of a cloud machine, or read the user's own keys.
os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
os.environ["NO_GCE_CHECK"] = "true"
# gcsfs would ask Google about each bucket, by a way that is not seen below; it reads this when it is imported.
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
    os.environ.pop(name, None)


def _is_loopback(address: object) -> bool:
    if not isinstance(address, tuple):  # a path: sockets of the local machine
        return True
    host = str(address[0])
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in {"", "localhost"}


@pytest.fixture(autouse=True, scope="session")
def _only_loopback():
    """Refuse connections to other machines, so that no test can come to depend on one."""
    connect = socket.socket.connect

    def guarded(self, address):
        if not _is_loopback(address):
            raise AssertionError(f"a test tried to reach {address!r}")
        return connect(self, address)

    patch = pytest.MonkeyPatch()
    patch.setattr(socket.socket, "connect", guarded)
    yield
    patch.undo()
