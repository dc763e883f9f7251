"""The targets of references: which may be read, how they are opened, and how bytes are fetched from them.

* `fetch`: reading the bytes references point to: a batch becomes a few range reads per target
* `grant`: what a set may read, given where it lies and the members of its spec
* `held_client`: the client of fsspec's HTTPFileSystem, held to a policy: each redirect and each address is asked
  about first
* `location`: where a set lies: the directory beside it, and the directory it is
* `policy`: which targets a reference set may read
* `target_url`: the URLs of references as text: which are relative, which are chains, which are paths of another
  system
* `targets`: from the URL of a reference to an opened store and a key in it
* `web_root`: web servers as roots whose redirects are authorised hop by hop
"""
