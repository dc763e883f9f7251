"""The Neuroglancer precomputed format: the document `info` of a volume of several scales, to arrays and back.

`info` parses the document and its parts as specs give them; `match` is constraints against schemas and stored scales;
`create` is new scales; `sharding` chooses how a new scale is sharded and says what shape shards have; `keys` names
chunks; `volume` makes the `ChunkedArray` of a scale, and says where its chunks are.
"""
