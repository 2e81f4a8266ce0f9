"""`python -m vitft` is `vitft`; under torchrun it is one of several processes.

Signals are taken care of before anything is imported that takes long: until a command has begun
there is nothing to clean up, so one ends the process at once and without a traceback.
"""

import os
import signal
import sys
from typing import NoReturn

from vitft.system.imports import ENDING, leave


def run() -> NoReturn:
    """The command `vitft`."""
    numbers = [n for n in ENDING if signal.getsignal(n) != signal.SIG_IGN]
    for number in numbers:
        signal.signal(number, leave)
    from vitft.cli.main import main

    code = main()
    for number in numbers:  # what was asked for is done: no need to wait for the interpreter's end
        signal.signal(number, lambda *_: os._exit(code))
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        # gloo's threads outlive an orderly exit now and then and abort it ("terminate called
        # without an active exception"), which fails the whole job.
        import atexit

        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    run()
