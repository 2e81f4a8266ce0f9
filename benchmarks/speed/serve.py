"""`vitft serve` under load and under attack, on one machine.

    python -m benchmarks.speed.serve --run runs/latest --images demo_flowers

Four parts, each with a fresh server: throughput of one client and of 200 clients; the queue with 200
clients; memory over 10,000 requests; and 5,000 hostile requests while another process polls /healthz.
Clients and server share the machine, so the figures are lower bounds.
"""

import argparse
import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

HOST = b"Host: localhost\r\n"
LEAKS = (b"Traceback", b'File "', b".py", b"site-packages", b"/home/", b"/tmp/", b"/usr/")


@contextmanager
def server(run: str, *options: str) -> Iterator[tuple[int, int]]:
    """Serve in a child process; yield its port and process id."""
    child = subprocess.Popen(
        [sys.executable, "-m", "vitft", "serve", "--run", run, "--port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    found = re.search(r":(\d+)/", child.stdout.readline())
    if not found:
        sys.exit(child.communicate()[1])
    try:
        yield int(found[1]), child.pid
    finally:
        child.send_signal(signal.SIGTERM)
        _, errors = child.communicate(timeout=30)
        print(f"    exit {child.returncode}, log: {len(errors)} characters", errors[-300:].strip())


def rss_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]


def post(image: bytes, path: bytes = b"/predict", *extra: bytes) -> bytes:
    head = b"POST " + path + b" HTTP/1.1\r\n" + HOST + b"".join(extra)
    return head + b"Content-Type: image/png\r\nContent-Length: %d\r\n\r\n" % len(image) + image


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Read one response; return its status and content."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    return int(head[9:12]), head + await reader.readexactly(int(length[1]) if length else 0)


def settle(port: int) -> None:
    """Wait until no request is pending and the server has returned its memory."""
    import http.client

    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/healthz")
        waiting = json.loads(connection.getresponse().read())["waiting"]
        connection.close()
        if not waiting:
            break
        time.sleep(0.2)
    time.sleep(5)


async def ordinary(
    port: int, images: list[bytes], clients: int, total: int
) -> tuple[float, Counter[int], list[float]]:
    """Return requests per second, statuses and latencies of clients without pauses."""
    left = iter(range(total))
    statuses: Counter[int] = Counter()
    latencies: list[float] = []

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for i in left:
            start = time.perf_counter()
            writer.write(post(images[i % len(images)]))
            status, _ = await answer(reader)
            statuses[status] += 1
            latencies.append(time.perf_counter() - start)
        writer.close()

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return total / (time.perf_counter() - start), statuses, sorted(latencies)


def quantile(latencies: list[float], part: float) -> str:
    return f"{1000 * latencies[min(len(latencies) - 1, int(part * len(latencies)))]:.0f} ms"


# hostile ----------------------------------------------------------------------------------------


def flipped(image: bytes, rng: random.Random) -> bytes:
    data = bytearray(image)
    for _ in range(rng.randrange(1, 30)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


def mutant_form(image: bytes, rng: random.Random) -> bytes:
    body = (
        b'--b\r\nContent-Disposition: form-data; name="i"; filename="a.png"\r\n\r\n' + image[:2000]
    )
    body = flipped(body * rng.randrange(1, 4) + b"\r\n--b--\r\n", rng)
    if rng.random() < 0.2:
        body = b"--b\r\n" * rng.randrange(10**6)
    kinds = (b"; boundary=b", b"", b'; boundary="', b"; boundary=" + b"x" * 300, b"; boundary=\xff")
    return post(body).replace(b"image/png", b"multipart/form-data" + rng.choice(kinds), 1)


def bomb(_: bytes, rng: random.Random) -> bytes:
    import zlib

    head = (
        b"IHDR" + rng.choice((7000, 60_000, 2**31 - 1)).to_bytes(4, "big") * 2 + b"\x08\x06\0\0\0"
    )
    chunk = b"\0\0\0\r" + head + zlib.crc32(head).to_bytes(4, "big")
    data = zlib.compress(bytes(2_000_000))
    idat = b"IDAT" + data
    idat = len(data).to_bytes(4, "big") + idat + zlib.crc32(idat).to_bytes(4, "big")
    return post(b"\x89PNG\r\n\x1a\n" + chunk + idat + b"\0\0\0\0IEND\xaeB`\x82")


def chunked(size: int, count: int, end: bytes = b"") -> bytes:
    piece = b"%x\r\n" % size + b"x" * size + b"\r\n"
    head = b"POST /predict HTTP/1.1\r\n" + HOST + b"Content-Type: image/png\r\n"
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + piece * count + end


PATHS = (b"/../../etc/passwd", b"/%00", b"/..%2f..%2f", b"/\\..\\", b"/predict/../../x", b"/%ff%fe",
         b"/" + b"a" * 60_000)  # fmt: skip
QUERIES = (b"top_k=-1", b"top_k=1e9", b"top_k[]=1", b"top_k=%00", b"top_k=" + b"9" * 5000, b"%",
           b"a=" * 9000)  # fmt: skip
METHODS = (b"TRACE", b"CONNECT", b"PUT", b"PATCH", b"PROPFIND", b"get", b"POST")

KINDS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "flipped image": lambda i, r: post(flipped(i, r)),
    "cut image": lambda i, r: post(i[: r.randrange(len(i))]),
    "flipped, explain": lambda i, r: post(flipped(i, r), b"/explain"),
    "noise": lambda _, r: post(r.randbytes(r.randrange(3000))),
    "bomb": bomb,
    "many scans": lambda i, _: post(i + b"\xff\xda\0\x08" * 5000),
    "mutant form": mutant_form,
    "no http": lambda _, r: r.randbytes(r.randrange(1, 3000)) + b"\r\n\r\n",
    "mutant http": lambda i, r: flipped(post(i)[:400], r),
    "many headers": lambda _, __: b"GET / HTTP/1.1\r\n" + HOST + b"a: b\r\n" * 100_000 + b"\r\n",
    "long header": lambda _, __: b"GET / HTTP/1.1\r\n" + HOST + b"a: " + b"b" * 10**6 + b"\r\n\r\n",
    "10 GB": lambda _, __: post(b"").replace(b"Length: 0", b"Length: 10000000000") + bytes(10_000),
    "lying length": lambda i, r: post(i).replace(b"Length: ", b"Length: %d" % r.randrange(9), 1),
    "chunks without end": lambda _, __: chunked(10_000, 20) + bytes(5_000_000),
    "crumbs": lambda _, r: chunked(r.randrange(1, 90), 10_000),
    "broken chunks": lambda _, __: chunked(10, 10, b"zz\r\n"),
    "too large": lambda _, __: post(bytes(25_000_000)),
    "foreign host": lambda i, _: post(i).replace(b"localhost", b"evil.example"),
    "foreign page": lambda i, _: post(i, b"/predict", b"Origin: http://evil.example\r\n"),
    "paths": lambda _, r: b"GET " + r.choice(PATHS) + b" HTTP/1.1\r\n" + HOST + b"\r\n",
    "queries": lambda i, r: post(i, b"/predict?" + r.choice(QUERIES)),
    "classes": lambda i, r: post(i, b"/explain?class=%" + r.randbytes(20).hex().encode()),
    "methods": lambda _, r: r.choice(METHODS) + b" /labels HTTP/1.1\r\n" + HOST + b"\r\n",
    "upgrade": lambda _, __: b"GET / HTTP/1.1\r\n" + HOST + b"Connection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    "pipeline": lambda i, _: post(i) * 20 + b"junk",
    "expect": lambda i, r: post(i, b"/predict", b"Expect: " + r.randbytes(5).hex().encode() + b"\r\n"),
}  # fmt: skip


async def attack(port: int, data: bytes, rng: random.Random) -> bytes:
    """Send, read what comes within a second, hang up; sometimes rudely, sometimes half-way."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    received = b""
    try:
        part = len(data) if rng.random() < 0.9 else rng.randrange(len(data) + 1)
        writer.write(data[:part])
        async with asyncio.timeout(rng.choice((1.0, 1.0, 0.05))):
            while more := await reader.read(65536):
                received += more
    except (TimeoutError, OSError):
        pass
    if rng.random() < 0.3:
        writer.transport.abort()
    else:
        writer.close()
    return received


async def hostile(
    port: int, images: list[bytes], total: int
) -> tuple[Counter[str], Counter[bytes], list[tuple[str, bytes]]]:
    rng, left = random.Random(0), iter(range(total))
    statuses: Counter[str] = Counter()
    leaks: Counter[bytes] = Counter()
    failed: list[tuple[str, bytes]] = []
    names = sorted(KINDS)

    async def client() -> None:
        for i in left:
            name = names[i % len(names)]
            received = await attack(port, KINDS[name](rng.choice(images), rng), rng)
            for status in re.findall(rb"HTTP/1\.1 (\d{3})", received) or [b"none"]:
                statuses[status.decode()] += 1
                if status == b"500":
                    failed.append((name, received[-300:]))
            for leak in LEAKS:
                leaks[leak] += leak in received

    await asyncio.gather(*(client() for _ in range(40)))
    return statuses, leaks, failed


def probe(port: int) -> None:
    """Poll /healthz on a new connection every 50 ms until SIGTERM; print the latencies."""
    import http.client

    latencies: list[float] = []
    signal.signal(
        signal.SIGTERM, lambda *_: (print(json.dumps(latencies), flush=True), os._exit(0))
    )
    while True:
        start = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/healthz")
        assert connection.getresponse().read().startswith(b'{"status": "ok"')
        latencies.append(time.perf_counter() - start)
        connection.close()
        time.sleep(0.05)


@contextmanager
def probing(port: int, into: list[float]) -> Iterator[None]:
    command = [sys.executable, "-m", "benchmarks.speed.serve", "--probe", str(port)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield
    finally:
        child.terminate()
        into += sorted(json.loads(child.communicate()[0] or "[]"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", default="runs/latest")
    parser.add_argument("--images", default="demo_flowers", help="folder")
    parser.add_argument("--parts", default="throughput,queue,memory,hostile")
    parser.add_argument("--probe", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.probe:
        probe(args.probe)
        return
    files = sorted(f for f in Path(args.images).rglob("*") if f.suffix in (".jpg", ".png"))
    if not files:
        parser.error(f"no .jpg or .png in {args.images}: give --images another folder")
    images = [f.read_bytes() for f in files[:: max(1, len(files) // 50)]][:50]
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}, {len(images)} images")
    if "throughput" in args.parts:
        with server(args.run, "--queue", "256") as (port, _):
            asyncio.run(ordinary(port, images, 1, 50))
            for clients, total in ((1, 500), (200, 2000), (1, 500), (200, 2000)):
                speed, statuses, late = asyncio.run(ordinary(port, images, clients, total))
                print(
                    f"  {clients} clients: {speed:.0f} images/s, {dict(statuses)}, p50 {quantile(late, 0.5)}, p99 {quantile(late, 0.99)}"
                )
    if "queue" in args.parts:
        with server(args.run) as (port, _):
            health: list[float] = []
            with probing(port, health):
                time.sleep(1)
                speed, statuses, late = asyncio.run(ordinary(port, images, 200, 4000))
            print(
                f"  200 clients, queue of 64: {dict(statuses)}, p99 {quantile(late, 0.99)}; /healthz p50 {quantile(health, 0.5)}, p99 {quantile(health, 0.99)}, maximum {quantile(health, 1)} of {len(health)}"
            )
    if "memory" in args.parts:
        with server(args.run) as (port, pid):
            for total in (1000, 9000):
                _, statuses, _ = asyncio.run(ordinary(port, images, 20, total))
                print(f"  after {total} more requests: {rss_mb(pid):.0f} MB, {dict(statuses)}")
    if "hostile" in args.parts:
        with server(args.run) as (port, pid):
            asyncio.run(ordinary(port, images, 40, 1000))
            settle(port)
            before, health, quiet = rss_mb(pid), [], []
            with probing(port, quiet):
                time.sleep(10)
            with probing(port, health):
                start = time.perf_counter()
                found, leaks, failed = asyncio.run(hostile(port, images, 5000))
                seconds = time.perf_counter() - start
                busiest = rss_mb(pid)
            settle(port)
            print(f"  5000 hostile requests in {seconds:.0f} s: {dict(sorted(found.items()))}")
            print(f"    500: {len(failed)} {failed[:3]}; leaks: {sum(leaks.values())} {+leaks}")
            print(
                f"    RSS {before:.0f} -> {busiest:.0f} at the end, {rss_mb(pid):.0f} MB after the last response; /healthz p50 {quantile(health, 0.5)}, p99 {quantile(health, 0.99)}, maximum {quantile(health, 1)} of {len(health)}"
            )
            print(
                f"    /healthz of the idle server before: p50 {quantile(quiet, 0.5)}, p99 {quantile(quiet, 0.99)}, maximum {quantile(quiet, 1)} of {len(quiet)}"
            )
            _, statuses, _ = asyncio.run(ordinary(port, images, 4, 100))
            print(f"    and 100 ordinary requests afterwards: {dict(statuses)}")


if __name__ == "__main__":
    main()
