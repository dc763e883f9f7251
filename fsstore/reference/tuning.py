"""The numbers that tune reference sets."""

PARSED_LEAST_BYTES = 1024  # bytes of members that are worth a call of the parser
URL_LOOK_AHEAD = 4  # times the text that may be looked at to find URLs that are equal in a row
# members parsed one by one before columns are tried again; it doubles up to 64 times as many
FEW_MEMBERS = 64
