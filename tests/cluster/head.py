"""A Ray cluster that lives as long as its standard input: prints its address. `python head.py CPUS`."""

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
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=300 << 20,
    )
    print(context.address_info["gcs_address"], flush=True)
    sys.stdin.read()
    ray.shutdown()
