"""A small model server of the kind that is written in an afternoon: Werkzeug's own server, one
route, the engine behind it. A path that it does not know is a 404 before any body is read.

Run by the interpreter of an environment that has some release of Werkzeug; knows nothing of
leakcheck. Ends when its standard input does.
"""

import importlib.metadata
import json
import sys
import threading
import urllib.error
import urllib.request

from werkzeug.serving import make_server
from werkzeug.wrappers import Request, Response

CHAT, MODELS = "/v1/chat/completions", "/v1/models"


def app(engine):
    """The WSGI application."""

    def asked(path, body=None):
        """The engine's own answer."""
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(engine + path, data=body, headers=headers)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - local
                return Response(
                    answer.read(), status=answer.status, content_type=answer.headers["Content-Type"]
                )
        except urllib.error.HTTPError as refused:
            return Response(refused.read(), status=refused.code, mimetype="application/json")

    @Request.application
    def routed(request):
        route = request.method, request.path
        if route == ("POST", CHAT):
            return asked("/chat/completions", request.get_data())
        if route == ("GET", MODELS):
            return asked("/models")
        return Response('{"error": {"message": "no such path"}}', 404, mimetype="application/json")

    return routed


def main(engine):
    """Serve until standard input ends."""
    server = make_server("127.0.0.1", 0, app(engine), threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    ready = {
        "base_url": f"http://127.0.0.1:{server.server_port}/v1",
        "release": importlib.metadata.version("werkzeug"),
    }
    print("READY", json.dumps(ready), flush=True)  # noqa: T201 - how it says where it is
    sys.stdin.buffer.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
