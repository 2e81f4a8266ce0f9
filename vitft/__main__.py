"""Entry point of the command `vitft` and of `python -m vitft`.

Nothing needs to be cleaned up before a command starts, so the signal handlers installed before
the imports end the process at once and without a traceback.
"""

import atexit
import logging
import os
import signal
import sys
from typing import NoReturn

from vitft.system.signals import EXIT_SIGNALS, exit_at_once


def run() -> NoReturn:
    """Run the command and exit with its code."""
    numbers = [n for n in EXIT_SIGNALS if signal.getsignal(n) != signal.SIG_IGN]
    for number in numbers:
        signal.signal(number, exit_at_once)
    code = 1

    def finish(*_: object) -> NoReturn:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        # Threads of gloo sometimes abort an orderly exit ("terminate called without an active
        # exception"), which makes the whole job fail. Registered first, so it is called last.
        atexit.register(finish)
    from vitft.cli.main import main

    try:
        code = main()
    except SystemExit as end:  # --help, or a closed pipe
        code = end.code if isinstance(end.code, int) else 0
        raise
    for number in numbers:  # the command is done: do not wait for the interpreter to shut down
        signal.signal(number, lambda *_: os._exit(code))
    sys.exit(code)


if __name__ == "__main__":
    run()
