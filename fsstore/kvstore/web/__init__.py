"""The HTTP client of fsstore.

It is used for reading from web servers, where a range must be exactly the range that was asked for.

* `client`: GET over connections that are kept, on one event loop or on a thread that waits
* `exchange`: one connection as the bytes of its answers: heads, bodies, and the headers of requests
* `route`: how a server is reached: its names and addresses, proxies, trust, and the connection of an event loop
"""
