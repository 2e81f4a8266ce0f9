"""Script for processes of a group: each calls every collective, and writes what it got as JSON."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from vitft.training import ProcessGroup, process_group


def results(group: ProcessGroup, seconds: float) -> dict[str, Any]:
    rank, items = group.rank, torch.arange(20).view(10, 2)
    first, second = torch.full((2,), float(rank)), torch.full((1, 3), 10.0 + rank)
    group.all_reduce([first, second])
    group.barrier()

    def work() -> int:
        time.sleep(seconds)
        return rank

    own = items[group.indices(10, 2, rank)]
    return {
        "group": [group.rank, group.size, group.is_main],
        "summed": [first.tolist(), second.tolist()],
        "largest": group.all_reduce_max(10 - rank),
        "broadcast": group.broadcast(f"of {rank}"),
        "main only": group.main_only(lambda: rank),
        "long": group.main_only(work),
        "gathered": group.gather({"rank": rank}),
        "rows": group.all_gather(own, 10, 2).tolist(),
        "few rows": group.all_gather(items[: rank == 0], 1).tolist(),
    }


if __name__ == "__main__":
    limit = float(sys.argv[2])
    with process_group(limit, "cpu") as group:
        # The main process alone may work for longer than a process may be silent
        found = results(group, 1.5 * limit if limit < 60 else 0.0)
        Path(sys.argv[1], f"{group.rank}.json").write_text(json.dumps(found))
        group.barrier()
    os._exit(0)  # gloo's threads may abort a process that exits normally, see __main__
