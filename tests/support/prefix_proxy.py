"""A reverse proxy that serves a page under a prefix, which it removes, as nginx does."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PREFIX = "/hospital/dpadmm"


@contextmanager
def prefix_proxy(port: int) -> Iterator[str]:
    """Yield the address of the proxy for the page on a port."""

    class Handler(BaseHTTPRequestHandler):
        def forward(self) -> None:
            if not self.path.startswith(f"{PREFIX}/"):
                return self.send_error(404)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {**dict(self.headers), "Connection": "close", "X-Forwarded-For": "192.0.2.1"}
            with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as upstream:
                upstream.request(self.command, self.path.removeprefix(PREFIX), body, headers)
                answer = upstream.getresponse()
                content = answer.read()
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() != "connection":
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)
            return None

        do_GET = do_POST = forward

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}{PREFIX}/"
        finally:
            server.shutdown()
            thread.join()
