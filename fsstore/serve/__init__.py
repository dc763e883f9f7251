"""Serving arrays to tools that only read zarr over HTTP: read-only, from this machine unless told otherwise.

* `answer`: requests for keys of a store, and what is answered: ranges, conditions, listings
* `listener`: HTTP on one address, as all servers of this library have it
* `server`: the server of stores: places by name, tokens and origins, addresses that open Neuroglancer
"""
