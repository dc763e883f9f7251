"""The numbers that tune key-value stores."""

WRITERS = 8  # threads for writes that sync; more of them only fight for the interpreter
# requests under way where a server is far, or keys of a commit: memory against rounds of waiting
FAR_REQUESTS = 256
# threads that begin a batch, and requests left to a server that refuses: speed against load
FEWEST_REQUESTS = 4
# seconds of the quickest answer of a far server: more requests to a nearer one gain nothing
FAR_S = 0.004
# seconds of the last answer below which the thread that waits for the next one asks for it itself: it spares a hop
SOON_S = 0.025
# moments that such a thread gives an answer that arrives at that pace: one hop less against receiving it twice
MOMENTS = 10
CONNECTION_KEPT_S = 15.0  # seconds: servers close idle connections, and one that is used late may be closing
CONNECTIONS_KEPT = 128  # idle connections: files of the process against connecting again
# seconds that the addresses of a name are remembered: asking again against missing a move
NAMES_KEPT_S = 10.0
SILENT_S = 30.0  # seconds of connecting, or of an answer of SFTP: slow lines against waiting for a dead host
SLOWEST_ANSWER = 1024  # bytes a second, averaged over an answer, below which a server is taken for dead
SLOWEST_LINE = 32 * 1024  # bytes a second of one of several requests, below which a line is taken for dead
# seconds after an answer that fills the buffers of a system: more of it may still be on its way
WIRE_REST_S = 0.01
CREDENTIAL_EARLY_S = 60.0  # seconds before credentials expire at which new ones are asked for
# seconds before a refused request is signed anew: obstore asks for credentials again after a tenth of a second
CREDENTIAL_KEPT_S = 0.15
# seconds before the second and the third try of a refused connection: a server that starts against a late error
REFUSED_PAUSES_S = (0.05, 0.2)
# seconds that clocks of machines may differ by: outcomes called unknown against a write that takes effect twice
CLOCKS_DIFFER_S = 2.0
