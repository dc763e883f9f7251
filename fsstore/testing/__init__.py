"""Tests for authors of stores and codecs: batteries that prove a contract, and doubles.

`kvstore_suite`, `codec_suite` and `scanner_suite` are the batteries; `kvstore_reading` is the part of the first that
only reads.  `doubles` are stores that count, fail, and answer late.
"""
