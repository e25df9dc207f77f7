"""An engine's rank of a weight group, as a script: it receives buckets and prints the SHA-256 of all their bytes.

python group_receiver.py NAME ADDRESS PORT DEADLINE_S SIZE [SIZE ..]
"""

from __future__ import annotations

import hashlib
import sys
from datetime import timedelta

import torch
from torch import distributed as dist
from torch.distributed import PrefixStore, TCPStore
from torch.distributed import distributed_c10d as c10d


def main(name: str, address: str, port: str, deadline_s: str, *sizes: str) -> None:
    timeout = timedelta(seconds=float(deadline_s))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    store = PrefixStore(name, TCPStore(address, int(port), is_master=False, timeout=timeout))
    group, _ = c10d._new_process_group_helper(
        2, 1, [], c10d.Backend("gloo"), store, group_name=c10d.GroupName(name), timeout=timeout
    )
    digest = hashlib.sha256()
    for size in sizes:
        bucket = torch.empty(int(size), dtype=torch.uint8)
        group.broadcast(bucket, 0).wait(timeout)
        digest.update(bucket.numpy().data)
    print(digest.hexdigest())


if __name__ == "__main__":
    main(*sys.argv[1:])
