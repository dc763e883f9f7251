"""A page to look at arrays: a tree, pictures of two dimensions, series, chunks, attributes.

The page, in the folder page, is plain HTML, CSS and scripts.  It asks the server here for numbers and draws them
itself.

* `door`: view, the page for an array, a group or a place; its server, and the requests that the page makes
* `subject`: the arrays below a place, opened once each, with their axes, resolutions and pictures
"""
