"""Reading: windows of cells are fetched, decoded and put in their places.

* `reader`: a read: it is cut into windows, each is fetched, decoded and placed; and the ways to do that quicker
* `window`: cells that are fetched together, decoded and put in their places
* `gather`: listed positions, one gather for many chunks
* `queue`: small reads that are begun one by one and made together
* `boxes`: many small boxes planned at once, and chunks fetched ahead of reads in a row
"""
