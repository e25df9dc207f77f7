"""Where a member's parts run: behind `call(method, ...) -> Future`, on a thread of this process or as Ray actors.

`Local` needs nothing but this process. `population.placement.ray` starts and finds a cluster, and nothing else here
imports Ray. Every wait has a deadline, and its message names member, phase and step.
"""

from population.errors import LostError, MemberLost, PlacementError
from population.placement.local import Local
from population.placement.protocol import Placement
from population.placement.waiting import gather, wait

__all__ = ["Local", "LostError", "MemberLost", "Placement", "PlacementError", "gather", "wait"]
