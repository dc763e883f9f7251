"""GRIB files of both editions: messages found here, described and decoded by ecCodes.

Messages are found when the file is opened, because nothing in a file says where they are.

* `cube`: fields as arrays: which of them stand in one, and which arrays fit into one dataset, as cfgrib groups them
* `library`: what ecCodes says of a message: its parameter, its level, its times and its grid
* `message`: the messages of a GRIB file: where each begins and ends, and where its sections are
* `scanner`: the scanner of GRIB
"""
