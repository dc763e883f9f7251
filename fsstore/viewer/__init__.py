"""A page to look at arrays: a tree, pictures of two dimensions, series, chunks, attributes.

The page, in the folder of that name, is plain HTML, CSS and scripts; it asks the server here for numbers and draws
them itself.

* `axis`: what stands along the dimensions of an array: coordinates, times, latitudes
* `description`: an array in words, as the page shows it
* `door`: view: the page for an array, a group or a place
* `level`: the same data in several resolutions
* `number`: values of an array as numbers that a page can draw
* `picture`: how much is read for a picture or a series, and reading it
* `routes`: what the page may ask, and what it is answered
* `server`: the server of one page, and who may ask it
* `subject`: what is looked at: the arrays below a place, opened once each
* `tuning`: the numbers that tune it, each with what it trades
"""
