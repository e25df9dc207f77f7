"""A Ray cluster that lives as long as its standard input: prints its address. `python head.py CPUS`.

It says to have one GPU, which Ray only counts; actors that ask for a part of it compute on the CPU all the same.
"""

from __future__ import annotations

import logging
import os
import sys

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray

if __name__ == "__main__":
    context = ray.init(
        address="local",
        num_cpus=int(sys.argv[1]),
        num_gpus=1,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=300 << 20,
    )
    print(context.address_info["gcs_address"], flush=True)
    sys.stdin.read()
    ray.shutdown()
