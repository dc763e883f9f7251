"""The reverse direction: stores and arrays of fsstore shown to other programs as fsspec filesystems.

Programs that know fsspec reach any store, and any array as the keys of a zarr store, by URL:
`auto::`, `zarr::`, `zarr3::`, `ocdbt::` and `fsstore://`.  An array of any format is presented in zarr version 2 or 3;
its chunks are passed on as stored, or encoded again.

* `place`: the store and the path behind a URL, and blocking calls from any thread
* `kv`: a key-value store as a filesystem: listings, reads joined into batches, writes
* `protocols`: the filesystems that fsspec finds by their entry points, and any pipeline as a MutableMapping
* `kerchunk`: reference sets by kerchunk's translators, which read through our stores; and any set in kerchunk's form
* `reference`: fsspec's `ReferenceFileSystem` with fsstore reading the set and its targets
* `view_document`: one array as zarr: its metadata documents, its codecs, its chunks
* `view`: an array or hierarchy of any format as the keys of a zarr store
"""
