"""Key-value stores: roots reach a place where bytes are kept, adapters rewrite requests to a base store.

`contract` says what a driver promises, and `kind` what is registered for it.

* for users: `store`, `result`, `batch`, `transaction`, `spec` with `spec_parse`; `opened` leads from a spec to a
  driver, `operation` from a call to its requests, `write_queue` takes writes that are begun one by one;
* roots without a library: `memory`; `local` with `local_path`, `local_read`, `local_scan`, `local_lock`,
  `local_stage`, `local_space`, `local_write` and `writeback`; `live` objects;
* roots over one: `roots`, `root_http`, `root_option` and `chain_url` are what users write, `fs` is their driver, and
  `engine` the contract of what answers it: `object_store`, `fs_generic`, `fs_s3`, `fs_http`, chosen by `fs_open`;
* the web: `http_client` asks, over connections of `http_wire`, which `http_route` makes, and `http_answer` reads;
  `header` checks what a caller wants to be said;
* requests: `byte_range`, `piece`, `coalesce`, `excerpt`, `key_range`, `value_limit`; `retry` and `fault` judge
  failures, `secret` what may be shown;
* conditions where storage has none: `referee`, `single_writer`;
* adapters: `compressed`; `zip_archive` with `zip_directory`, `zip_member`, `zip_source`; `ocdbt`; `reference`;
  `view`, an array shown as a store, with `view_chunk`, `view_codec`, `view_document`;
* transactions: `ledger` is the inside of one, `overlay` what it changed in a store, `transactional` the store as it
  sees it, `commit` and `commit_queue` write it;
* looking around: `probe` for one format, `hierarchy` for the arrays below a place.
"""
