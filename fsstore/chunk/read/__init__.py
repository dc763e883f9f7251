"""Reading: windows of cells are fetched, decoded and copied to their places.

* `reader`: a read: divided into windows, each of which is fetched, decoded and placed; and quicker ways to do so
* `window`: cells that are fetched together, decoded and copied to their places
* `gather`: listed positions, one gather for many chunks
* `queue`: small reads that are begun one by one and made together
* `boxes`: many small boxes planned together, and chunks fetched ahead of consecutive reads
"""
