"""The HTTP client of fsstore.

It reads from web servers, where a range must be exactly the requested range.

* `client`: GET over kept-alive connections, on one event loop or on a thread that waits
* `exchange`: one connection as the bytes of its answers: heads, bodies, and the headers of requests
* `route`: the way to a server: names and addresses, proxies, trust, and the connection of an event loop
"""
