"""Array drivers: from a spec to an opened array.  Each is found by its name in `fsstore.registry`."""
