"""Codecs: bytes to arrays and back, without input or output.

`contract` says what a codec promises, `ability` what some can do beyond it, and `configuration` reads its members.

* `zarr3`: the codecs of zarr version 3, a module each; `numcodecs`: the filters and compressors of version 2;
* `extension`: the codecs of the registry of zarr extensions; `precomputed`: chunks of Neuroglancer's volumes;
* `chain`: codecs one after the other, as wished for, as stored, and bound to the chunks of one array;
* shared: `stream` works in bounded steps, `size` limits what may come out, `fill` says what is left out,
  `scratch` is memory for a moment.
"""
