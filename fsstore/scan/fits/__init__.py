"""FITS files, parsed here without another library: images, tables, and images compressed tile by tile.

Headers are read when the file is opened, which tell where the next ones are.

* `column`: the columns of FITS tables: where each stands in a row, and what it is turned into
* `header`: the headers of a FITS file: cards of eighty letters, and where the data of each unit lie
* `image`: images of FITS files: those that are one run of bytes, and those that a table holds tile by tile
* `scanner`: the scanner of FITS
"""
