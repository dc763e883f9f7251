"""Combining many files into one dataset: scanned once each, placed by their coordinates, put together by arithmetic.

Files become columns (`scan`), columns become one dataset (`assembly`), and that is a value that is saved, read and
added to (`combined`, `verbs`).  Where files differ, arrays become layers instead of wrong numbers.

* `agreement`: whether files hold the same values where several hold the same part of a variable
* `assembly`: from a batch of files to the whole: each variable put together as far as files agree
* `checking`: sets and datasets against their files: there, long enough, unchanged, and decodable
* `combined`: what combining makes: to be read, looked into, checked, moved and saved
* `coordinates`: coordinates of files that are in no variable: given, or told by names and attributes
* `differ`: how the forms of one variable differ, and how its values are to be decoded
* `layers`: arrays of pieces: sources for files that are encoded alike, and where each file lies
* `naming`: variables under other names, left out, or made coordinates
* `new_axis`: variables of files that have no dimension of the name: each file becomes one step of a new one
* `order`: where files lie along a dimension: coordinates sorted, and gaps, overlaps and doubles found
* `repeated`: variables that do not grow and differ between files, repeated along a dimension
* `report`: what combining says of itself
* `times`: times of all files as those of the whole
* `tuning`: the numbers that tune it, each with what it trades
* `unit_change`: changes between units that are multiples of each other, or shifted
* `verbs`: combining, adding files to a saved dataset, replacing and dropping them, and checking whether they changed
* `whole`: making the tables of the whole
"""
