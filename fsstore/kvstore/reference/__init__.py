"""Reference sets: keys that point into bytes stored elsewhere.

`table` is the one internal form: columns, filled from documents by `table_builder` and answered in batches through
`refset`.

* JSON: `json_refs` reads a document, `json_scan` its members, most of them in bulk: `json_run` as columns, found by
  `json_form` in text that `json_plain` has freed of escapes, `json_batch` through a parser where they do not look
  alike; `text`, `families` and `keys` take many strings apart at once, `inline` keeps values that are in the
  document;
* computed: `template`, and `gen` with `gen_columns` and `gen_index`;
* parquet: `parquet_refs`, of `parquet_files`, read by `parquet_read`, with `parquet_metadata`;
* opening: `kind`, `load`, `detect`, `location`, `live_set`;
* reading: `driver` answers, `fetch` reads what references point to; `value` is one of them, `target_url` its URL,
  `targets` where that leads, `policy` whether it may, `web_root` the same for redirects, `bound` how much may come;
* writing: `overlay` in place, `writer` and `parquet_write` as a document, `parquet_document` file by file,
  `relocation` for another place;
* for users: `collection`; `report`, `verify` with `grid`; `scan` with `fits_repair`.
"""
