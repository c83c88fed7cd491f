"""Building datasets at scale, and keeping them whole.

``build_shards`` makes shards of any source, ``reshard`` and ``merge`` of other shards: in parallel, resumable, and the
same bytes whoever does the work. ``verify`` finds what is wrong with shards, and ``repair`` mends it.
"""

from ._build import build_shards
from ._care import (
    READERS,
    Finding,
    LintRule,
    LostSample,
    Repair,
    Severity,
    ShardRepair,
    Verification,
    repair,
    report_page,
    verify,
)
from ._engine import Engine, LocalEngine
from ._plan import Plan, PlannedShard, PlanOptions, plan_shards
from ._progress import BuildProgress
from ._ray import RayEngine
from ._report import BuildReport
from ._reshard import merge, reshard
from ._work import Control, Failure

__all__ = [
    "READERS",
    "BuildProgress",
    "BuildReport",
    "Control",
    "Engine",
    "Failure",
    "Finding",
    "LintRule",
    "LocalEngine",
    "LostSample",
    "Plan",
    "PlanOptions",
    "PlannedShard",
    "RayEngine",
    "Repair",
    "Severity",
    "ShardRepair",
    "Verification",
    "build_shards",
    "merge",
    "plan_shards",
    "repair",
    "report_page",
    "reshard",
    "verify",
]
