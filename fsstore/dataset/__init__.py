"""Datasets: the arrays and groups below a place, as people list, open and change them.

* `group`: the arrays and groups below a place, as people open, list, make and delete them
* `listing`: list_arrays and tree: which arrays there are below a URL, without opening them; the tree in notebooks
* `members`: the members of a group: find, open, create, delete and move them; and the specs of new arrays
* `multiscale`: images in several resolutions: their description in the attributes of a group, and their levels
* `origin`: the places that values come from
* `place`: the place of a group: an open store, its format, and its consolidated metadata; removing what lies below
"""
