"""Build datasets at scale, and verify and repair them.

``build_shards`` writes shards from any source, ``reshard`` and ``merge`` from other shards. Builds run in parallel, are
resumable, and give the same bytes for any number of workers. ``verify`` finds damage; ``repair`` saves what is intact.
"""

from ._build import build_shards
from ._engines import Engine, LocalEngine, RayEngine
from ._findings import Finding, LostSample, Repair, Severity, ShardRepair, Verification, report_page
from ._lint import READERS, LintRule
from ._plan import Plan, PlannedShard, PlanOptions, plan_shards
from ._repair import repair
from ._report import BuildProgress, BuildReport
from ._reshard import merge, reshard
from ._tasks import Control, Failure
from ._verify import verify

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
