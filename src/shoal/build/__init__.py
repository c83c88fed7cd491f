"""Building datasets at scale, and keeping them whole.

``build_shards`` makes shards of any source, ``reshard`` and ``merge`` of other shards: in parallel, resumable, and the
same bytes whoever does the work. ``verify`` finds what is wrong with shards, and ``repair`` mends it.
"""

from ._build import build_shards
from ._engines import Engine, LocalEngine, RayEngine
from ._findings import Finding, LostSample, Repair, Severity, ShardRepair
from ._lint import READERS, LintRule
from ._plan import Plan, PlannedShard, PlanOptions, plan_shards
from ._repair import repair
from ._report import BuildProgress, BuildReport, report_page
from ._reshard import merge, reshard
from ._tasks import Control, Failure
from ._verify import Verification, verify

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
