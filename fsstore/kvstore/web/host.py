"""The names and addresses of machines: the spelling a client connects to, and which of them are this machine.

A host is judged as it will be looked up, not as it is written: digits in circles and letters of full width are names
of this machine once IDNA has prepared them.  A name says nothing about the addresses behind it, so addresses are judged
again when a connection is made.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import unicodedata
from typing import TypeAlias
from urllib.parse import unquote

__all__ = ["Address", "is_internal", "is_internal_address", "is_plain", "prepared"]

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_LONGEST = 255  # bytes of a name; preparing a long one takes time that grows with its square
_PLAIN = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?|\[[0-9a-f:.]+(%[a-z0-9_.-]+)?\]", re.ASCII)
_HOSTS = frozenset(
    {"localhost", "localhost.localdomain", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback"}
)
_LOCAL_ENDS = (".localhost", ".internal", ".localdomain", ".localdomain4", ".localdomain6")
_SERVICES = frozenset(
    map(
        ipaddress.ip_address,
        ("fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "168.63.129.16", "192.0.0.192"),
    )
)
"""Addresses at which clouds tell a machine its credentials, where they are not link-local."""
_TRANSLATED = tuple(
    map(ipaddress.IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/48", "::/96", "::ffff:0:0:0/96"))
)
"""Networks whose last 32 bits are an address of IPv4."""


def prepared(name: str) -> str:
    """Return the name of a host in the letters that are looked up; raises `ValueError` where there are none.

    >>> prepared("LocalHost"), prepared("bücher.example")
    ('localhost', 'xn--bcher-kva.example')
    """
    if len(name) > _LONGEST:
        raise ValueError(f"the name of a host has {len(name)} characters")
    if not name.isascii():  # the codec knows the letters of Unicode 3.2 only
        name = unicodedata.normalize("NFKC", name)
        if any(letter.isdecimal() and not letter.isascii() for letter in name):
            raise ValueError("digits of another script in the name of a host")
        name = name.encode("idna").decode("ascii")
    return name.lower()


def is_plain(host: str) -> bool:
    """Return whether a prepared host (without a port) is a name or an address that every client reads alike."""
    return _PLAIN.fullmatch(host) is not None


def is_internal(host: str) -> bool:
    """Return whether a host, with or without a port, is written as loopback, link-local or unspecified.

    Numbers in any base and with missing parts are addresses too: `2130706433`, `0x7f.1`.
    """
    name = host.rpartition("@")[2].lower()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
    try:
        name = prepared(unquote(name)).rstrip(".")
    except ValueError:
        return True
    if not name or name in _HOSTS or name.endswith(_LOCAL_ENDS):
        return True
    found = _address(name)
    return found is not None and is_internal_address(found)


def _address(name: str) -> Address | None:
    """Return the address that a text is read as, by us or by the resolver of the system."""
    try:
        return ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        pass
    try:
        return ipaddress.IPv4Address(socket.inet_aton(name))
    except (OSError, ValueError):
        return None


def is_internal_address(address: Address | str) -> bool:
    """Return whether an address is loopback, link-local, unspecified or multicast, or tells credentials."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0]) if isinstance(address, str) else address
    except ValueError:
        return True
    if isinstance(found, ipaddress.IPv6Address):
        return _is_internal(found) or any(_is_internal(each) for each in _within(found))
    return _is_internal(found)


def _within(address: ipaddress.IPv6Address) -> list[ipaddress.IPv4Address]:
    """Return the addresses of IPv4 that an address of IPv6 may lead to."""
    inside = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if any(address in network for network in _TRANSLATED):
        inside.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return [each for each in inside if each is not None]


def _is_internal(address: Address) -> bool:
    first = address.version == 4 and int(address) >> 24 == 0  # 0.0.0.0/8 is "this host" too
    return (
        first
        or address in _SERVICES
        or any((address.is_loopback, address.is_link_local, address.is_unspecified, address.is_multicast))
    )
