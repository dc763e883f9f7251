"""TIFF files, BigTIFF, COG, GeoTIFF and OME-TIFF among them, parsed here without another library.

Directories are read when the file is opened; where tiles or strips are, when an array is first read.

* `directory`: the directories of a TIFF file: where the values of each tag lie, read in rounds
* `encoding`: how the tiles and strips of a TIFF page are encoded, in the words of zarr v2
* `geography`: where on earth an image is, and what GDAL says of it: the tags of GeoTIFF and GDAL as attributes
* `ome`: the arrays that the XML of OME-TIFF describes: which page is which plane, sizes of pixels, names
* `page`: pages of TIFF files: what one directory says of its image, and how the image is cut into tiles or strips
* `scanner`: the scanner of TIFF
* `segments`: where the tiles or strips of one array are, and the few that are no range of the file as it is
* `series`: which pages of a TIFF file make up one array, and which arrays are smaller copies of another
"""
