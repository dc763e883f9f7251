"""Formats: stored documents to one description of a stored array, and back.  No format does any input or output.

* `contract` is what each keeps: `zarr2`, `zarr3` and `n5`;
* of one format: `zarr2_dtype`, `zarr3_dtype` and `zarr3_document` read what is stored, `zarr2_match`, `zarr3_match`
  and `n5_match` compare it with what is asked for, `zarr2_create` and `zarr3_create` complete what is new;
* of several: `schema_check`, `fill_value`, `dimension_names`, and `field`, the part of an element that an array
  shows.
"""
