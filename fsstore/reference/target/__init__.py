"""The targets of references: which may be read, how they are opened, and how bytes are fetched from them.

* `policy`: the targets a set may read, their URLs as text, and where the set lies
* `targets`: from the URL of a reference to an opened store, a key in it, and the bytes
* `web_root`: web servers as roots whose redirects are authorised hop by hop
"""
