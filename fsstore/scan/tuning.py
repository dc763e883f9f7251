"""The numbers that tune scanning files."""

# bytes that a scan reads at a time: requests against bytes that it does not need
SCAN_BLOCK_BYTES = 16 * 1024
# bytes of a header or directory in most files; sections of GRIB take two, objects of HDF5 four: another request
# against bytes in vain
HEADER_BYTES = 512
