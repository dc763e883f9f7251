"""Datasets: the arrays and groups below a place, as people list, open and change them.

* `consolidated`: consolidated metadata: all documents of a hierarchy in one, made, kept true, and compared with
  what stands there
* `group`: the arrays and groups below a place, as people open, list, make and delete them
* `html`: A tree of groups and arrays for notebooks: it opens and closes, without a script
* `listing`: list_arrays and tree: which arrays there are below a URL, without opening them
* `members`: what is done with the members of a group: find, open, create, delete and move them, by path below a
  place
* `multiscale`: images in several resolutions: their description in the attributes of a group, and their levels
* `new_array`: the specs of new arrays, from the words in which people describe them: shape, type, chunks, shards,
  codec
* `place`: the place of a group: an open store, the format that stands there, and what its consolidated metadata say
* `removal`: removing and moving what lies below a path: metadata first where a reader must not see fill values in
  place of data
* `resize`: resizing the arrays of a group along named dimensions, in one step for readers of consolidated metadata
* `same_place`: whether two places are the same, or one lies in the other, whatever they are called
* `source`: the key-value store that a place of a dataset means, whatever people name it by
"""
