"""Datasets: the arrays and groups below a place, as people list, open and change them.

* `georeference`: where the elements of a raster lie on a map, and those of a view of it
* `group`: the arrays and groups below a place, as people open, list, make and delete them
* `image`: descriptions of images in the attributes of groups: levels, axes, places, labels, plates and wells
* `listing`: list_arrays and tree: which arrays there are below a URL, without opening them; the tree in notebooks
* `members`: the members of a group: find, open, create, delete and move them; and the specs of new arrays
* `multiscale`: images in several resolutions: which there are below a place, and their levels as open arrays
* `origin`: the places that values come from
* `place`: the place of a group: an open store, its format, and its consolidated metadata; removing what lies below
"""
