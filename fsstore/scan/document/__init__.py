"""Documents that describe arrays whose values lie in other files.

* `dmrpp`: DMR++ documents of OPeNDAP: the chunks of an HDF5 file, in XML
* `xml_tree`: XML documents as trees, read without trust
"""
