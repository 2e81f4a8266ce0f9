"""Entry point of the command `vitft` and of `python -m vitft`.

Until a command starts, there is nothing to clean up, so signals end the process at once and
without a traceback.
"""

import atexit
import logging
import os
import signal
import sys
from typing import NoReturn

from vitft.system.cores import container_cores
from vitft.system.signals import EXIT_SIGNALS, SIGNALS, exit_at_once


def run() -> NoReturn:
    """Run the command and exit with its code."""
    open_closed_descriptors()
    numbers = [n for n in EXIT_SIGNALS if signal.getsignal(n) != signal.SIG_IGN]
    for number in numbers:
        signal.signal(number, exit_at_once)
    code = 1
    if (cores := container_cores()) < (os.cpu_count() or 1):  # libraries count the machine's cores
        os.environ.setdefault("OMP_NUM_THREADS", str(cores))

    def finish(*_: object) -> NoReturn:
        logging.shutdown()
        os._exit(code)  # main has flushed the streams

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        # gloo's threads sometimes abort an orderly exit ("terminate called without an active
        # exception"), which makes the whole job fail. `finish` is registered first so that it runs
        # last.
        atexit.register(finish)
    from vitft.cli.main import main

    code = main()
    if code in SIGNALS.values():  # stopped: do not wait for library threads
        finish()
    for number in numbers:  # the command is done: do not wait for the interpreter to shut down
        signal.signal(number, lambda *_: os._exit(code))
    sys.exit(code)


def open_closed_descriptors() -> None:
    """Open the null device in place of any standard stream that the caller has closed.

    Otherwise, the next file opened would reuse the descriptor of a standard stream, and libraries
    that write to stderr could corrupt that file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # uses the lowest free descriptor


if __name__ == "__main__":
    run()
