"""`python -m vitft` is `vitft`; under torchrun it is one of several processes."""

import atexit
import os
import sys

from vitft.cli import main

if __name__ == "__main__":
    code = main()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        # gloo's threads outlive an orderly exit now and then and abort it ("terminate called
        # without an active exception"), which fails the whole job.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
