"""Tests for authors of stores and codecs: batteries that prove a contract, and doubles.

`kvstore_suite`, `codec_suite` and `scanner_suite` are the batteries; `kvstore_reading`, `kvstore_writing` and
`kvstore_steps` are the parts of the first.  `doubles` are stores that count, fail, and answer late.
"""
