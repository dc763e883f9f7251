"""A page to look at arrays: a tree, pictures of two dimensions, series, chunks, attributes.

The page, in the folder of that name, is plain HTML, CSS and scripts; it asks the server here for numbers and draws
them itself.

* `door`: view: the page for an array, a group or a place; its server, and what the page may ask
* `description`: an array in words, as the page shows it
* `picture`: values of an array as numbers and pictures: how much is read, and reading it
* `subject`: the arrays below a place, opened once each, with their axes and resolutions
"""
