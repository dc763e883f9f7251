"""Serving arrays to tools that only read zarr over HTTP: read-only, from this machine unless told otherwise.

* `listener`: HTTP on one address, as all servers of this library have it, and answers to requests for keys
* `server`: the server of stores: places by name, tokens and origins, addresses that open Neuroglancer
"""
