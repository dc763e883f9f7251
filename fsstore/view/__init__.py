"""Any array or hierarchy shown as the keys of a zarr store.

Metadata are presented in zarr version 2 or 3, and chunks are passed on as stored, or encoded again.
So tools that only read zarr can read every format.

* `chunk`: the bytes of the chunks of an array that is shown as zarr
* `codec`: how chunks are encoded, said in the words of the other version of zarr, where both have the words
* `document`: the presentation of one array as zarr: its metadata documents, and the keys of its chunks
* `driver`: an array or hierarchy of any format shown as the keys of a zarr store
"""
