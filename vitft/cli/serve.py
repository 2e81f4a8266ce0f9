"""`vitft serve`: serve a trained model over HTTP."""

import argparse
import contextlib
import gc
import logging
import re
import socket
import sys
from typing import TYPE_CHECKING

from vitft.cli import output
from vitft.cli.parser import Command
from vitft.predict.request import Marks
from vitft.serve.limits import ALL_INTERFACES, ServeLimits, access_for, is_loopback
from vitft.system.errors import Stopped, UsageError
from vitft.system.imports import heavy_imports, require_extra
from vitft.system.rundir import loading_step
from vitft.system.signals import Stopper

if TYPE_CHECKING:
    from starlette.types import ASGIApp


def _byte_count(text: str) -> int:
    match = re.fullmatch(r"(\d+) ?([kMG]?)B?", text.strip(), re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes such as 20MB")
    return int(match[1]) * 1000 ** ["", "k", "m", "g"].index(match[2].lower())


@Command(
    "serve",
    f"""
common options:
--run RUN  run directory, export, checkpoint, ONNX graph or hf:OWNER/NAME (default: runs/latest)
--host
--port PORT := 8000  port to listen on, or 0 for any free port
--threshold
--precision
--confidence
--device
advanced options:
--allow-host NAME  additional host name to accept, e.g. of a reverse proxy (may be repeated)
--max-bytes N := {ServeLimits().max_bytes}  maximum size of a request in bytes, e.g. 20MB or 500000
--queue N := {ServeLimits().queue}  maximum number of queued images
--access-log  print a line per request to stderr: time, client, method, path, status, duration
""",
    description="Serve predictions at POST /predict, and a web page for uploading images at /. "
    "Without --host, the server is reachable only from this machine. It has no password: for other "
    "users, put it behind a reverse proxy (docs/serve.md). Press Ctrl-C to stop it.",
    changed={"max_bytes": {"type": _byte_count}},
    defaults={"device": "auto"},
)
def _serve_command(args: argparse.Namespace) -> int:
    """Serve until a signal arrives, and return 130 for SIGINT or 143 for other signals."""
    from vitft.models.find import find_model

    limits = ServeLimits(max_bytes=args.max_bytes, queue=args.queue)
    access = access_for(args.host, args.allow_host)
    check_port(args.port)
    marks = Marks(threshold=args.threshold, precision=args.precision, confidence=args.confidence)
    require_extra("serve", feature="vitft serve")
    checkpoint = find_model(args.run, graphs=True)
    with heavy_imports(loading_step(args.run)):
        from vitft.predict.postprocess import Postprocess
        from vitft.predict.threshold import marking
        from vitft.predict.torch_engine import open_engine
    from vitft.serve.app import make_app
    from vitft.serve.batching import BatchQueue, request_log
    from vitft.serve.server import listen

    if args.access_log:
        request_log.setLevel(logging.DEBUG)
    with listen(args.host, args.port) as bound, Stopper() as stopper:
        engine = open_engine(args.run, args.device)
        postprocess = Postprocess.for_run(args.run, engine, top_k=len(engine.outputs.classes))
        postprocess = marking(postprocess, marks, checkpoint.parent)
        postprocess.announce()
        app = make_app(BatchQueue(engine, postprocess, limits), access)
        if not is_loopback(args.host):
            output.warn(
                f"any machine that can reach {args.host} can use this server: "
                "it has neither authentication nor encryption"
            )
        code = run_server(app, limits, bound, args.host, about="serving at {}")
    return stopper.exit_code or code


def run_server(
    app: "ASGIApp", limits: ServeLimits, bound: socket.socket, host: str, *, about: str
) -> int:
    """Print `about` with the address, serve until a signal arrives, and return its exit code.

    The socket is bound to `host`. In `about`, `{}` stands for the address on this machine.
    """
    from vitft.serve.server import make_server

    server, port = make_server(app, limits), bound.getsockname()[1]
    gc.collect()
    gc.freeze()  # pauses for garbage collection would delay requests
    sys.setswitchinterval(0.0005)  # with 5 ms, a response could wait as long for each decoder
    name = "127.0.0.1" if host in ALL_INTERFACES else host.strip("[]")
    address = f"http://[{name}]:{port}/" if ":" in name else f"http://{name}:{port}/"
    output.result(f"{about.format(address)} (press Ctrl-C to stop)")
    with contextlib.suppress(Stopped):  # not raised if it is ignored, as in shell jobs with &
        server.run(sockets=[bound])
    if server.exit_code:
        output.note("stopped")
    return server.exit_code


def check_port(port: int) -> None:
    """Raise a UsageError if a port number is out of range."""
    if not 0 <= port < 2**16:
        raise UsageError(
            f"invalid --port {port}", fix="use a number from 1 to 65535, or 0 for any free port"
        )
