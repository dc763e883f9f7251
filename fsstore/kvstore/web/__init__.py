"""The HTTP client of fsstore: connections, routes, headers and answers.

It is used for reading from web servers, where a range must be exactly the range that was asked for.

* `answer`: the answers of web servers as bytes: where a head ends, what it says, and where its body ends
* `client`: the HTTP client of fsstore: GET over connections that are kept, on one event loop or a thread that waits
* `exchange`: one connection to a web server as the bytes of answers come, whoever receives them
* `header`: headers of HTTP that a caller gives, as lines or by name: checked, and never shown, for a value may be a
  credential
* `host`: the names and addresses of machines: the spelling a client connects to, and which of them are this machine
* `kept`: connections that are kept for the next request
* `route`: how a web server is reached: directly or through a proxy, by which address, with which trust
* `socket_wire`: a connection of the thread that waits for the answer, without an event loop
* `wire`: a connection of an event loop, and the GET under way on it
"""
