"""The door of `vitft serve`: a trained model behind HTTP, with a page to drop images on."""

import argparse
from typing import TYPE_CHECKING

from vitft.serve.access import EVERYWHERE, access_for, is_loopback
from vitft.serve.limits import Limits
from vitft.system import console
from vitft.system.errors import Stopped, UsageError
from vitft.system.extras import require_extra
from vitft.system.imports import heavy_imports
from vitft.system.signals import Stopper

if TYPE_CHECKING:
    from vitft.cli.parser import Commands


def add_serve(verbs: "Commands") -> None:
    """`vitft serve`."""
    parser = verbs.add_parser(
        "serve",
        help="the trained model behind HTTP, with a page to drop images on",
        description="Answer POST /predict, and show a page to drop images on at /. Without "
        "--host only this machine reaches it. Ctrl-C stops it.",
    )
    parser.add_argument(
        "--run", metavar="RUN", help="run folder or checkpoint (default: latest), hf:owner/name"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps")
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="where to listen")
    parser.add_argument("--port", type=int, default=8000, help="0 takes any that is free")
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="also answer requests for this host name, e.g. that of a proxy in front",
    )
    parser.add_argument(
        "--max-bytes", type=int, default=Limits().max_bytes, metavar="N", help="of one request"
    )
    parser.add_argument(
        "--queue", type=int, default=Limits().queue, metavar="N", help="images that may wait"
    )
    parser.set_defaults(command=serve_command)


def serve_command(args: argparse.Namespace) -> int:
    """Serve until a signal says stop: 130 for SIGINT, 143 for SIGTERM."""
    from vitft.models.find import find_model

    limits = Limits(max_bytes=args.max_bytes, queue=args.queue)
    access = access_for(args.host, args.allow_host)
    check_port(args.port)
    require_extra("serve", feature="serve")
    find_model(args.run)
    with heavy_imports():
        from vitft.predict.torch_engine import Predictor
    from vitft.serve.server import listen, make_server
    from vitft.system.malloc import freeze_garbage

    with listen(args.host, args.port) as bound, Stopper() as stopper:
        predictor = Predictor.from_run(args.run, device=args.device)
        server = make_server(predictor, limits, access)
        freeze_garbage()
        if not is_loopback(args.host):
            console.warn(
                f"every machine that reaches {console.visible(args.host)} can use this server; "
                "it asks for no password and does not encrypt"
            )
        console.result(f"serving at {address(args.host, bound.getsockname()[1])} (Ctrl-C stops)")
        try:
            server.run(sockets=[bound])
        except Stopped:
            console.note("stopped")
    return stopper.exit_code or 0


def check_port(port: int) -> None:
    """Refuse a number that no port has."""
    if not 0 <= port < 2**16:
        raise UsageError(f"--port is {port}", fix="use a number up to 65535, or 0 for a free one")


def address(host: str, port: int) -> str:
    """What to open in a browser on this machine."""
    name = "127.0.0.1" if host in EVERYWHERE else host.strip("[]")
    return f"http://[{name}]:{port}/" if ":" in name else f"http://{console.visible(name)}:{port}/"
