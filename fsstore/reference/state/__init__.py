"""Reference sets as the driver sees them: keys resolved in batches, and what is changed before it is saved.

* `refset`: reference sets as the driver sees them: keys resolved in batches, whatever the document was
* `rewritten`: a set with many changes at once: what it keeps, and references and values that are new
* `scan_record`: which file a set was scanned from: enough to tell whether it still is that file
* `set_state`: writing to a reference set: conditions, several writers, and what stands in memory until it is saved
* `size_limit`: how many bytes a reference may sensibly have, so that no set makes its reader fetch without end
"""
