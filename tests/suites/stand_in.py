"""The plugin of pytest that puts fsstore in the place of others' stores and filesystems."""

from __future__ import annotations

import fsspec

from fsstore.filesystem.reference import ReferenceFileSystem
from fsstore.interop.zarr import ZarrStore


def pytest_configure(config):
    """Reference sets are read by us wherever a program asks fsspec for the protocol `reference`."""
    config.addinivalue_line("markers", "network: in VirtualiZarr, what needs a network")
    fsspec.register_implementation("reference", ReferenceFileSystem, clobber=True)


def pytest_plugin_registered(plugin, manager):
    """Directories of the fixtures of zarr-python are our store."""
    if hasattr(plugin, "parse_store") and hasattr(plugin, "LocalStore"):
        plugin.LocalStore = ZarrStore
