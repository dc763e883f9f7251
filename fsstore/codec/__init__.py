"""Codecs: bytes to arrays and back, without input or output.

`contract` says what a codec promises, `ability` what some can do beyond it, and `configuration` reads its members.

* `chain`: chains of codecs: as they are wished for, as they are stored, and bound to the chunks of one array
* `element_copy`: copying elements from one strided array to another in the order that costs least
* `extension`: codecs that the registry of zarr v3 extensions defines, each a class
* `fill`: what missing elements are, and whether elements are that: such chunks and sub-chunks are left out of what
  is stored
* `grib_header`: a check of GRIB messages before ecCodes decodes them, because it trusts the images in them
* `image_header`: what is looked at in image data before a decoder written in C sees it, because that decoder trusts
  it
* `image_size`: how large an image is, and how deep its samples are, by its headers, before anything is decoded
* `numcodecs`: the codecs of zarr version 2: filters and compressors of numcodecs and of the libraries that register
  with it
* `precomputed`: chunks of the Neuroglancer precomputed format: arrays of channel, z, y and x to bytes and back
* `scratch`: memory for elements that are needed only for a while: used again and again
* `size`: how many bytes an encoding may decode to, and the errors when it does not
* `stream`: compression and decompression in bounded steps, for libraries that offer objects for them (zlib, bz2,
  lzma)
* `tuning`: the numbers that tune it, each with what it trades
* `zarr3`: the codecs of zarr version 3, a module each
"""
