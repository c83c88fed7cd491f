"""Keeping a dataset whole: verify finds what is wrong with it, repair saves what can be saved.

File by file: ``_finding`` is one thing found, ``_explain`` and ``_lint`` say why it matters, ``_profile`` is what one
shard shows of itself, ``_verify`` puts it together. ``_chains`` finds headers in a damaged tar, ``_unpacked`` gets at
the tar in a damaged compressed shard, ``_salvage`` decides which samples are whole, ``_rewrite`` writes them anew,
``_judge`` says what is to be done with one shard and ``_repair`` does it. ``_page`` shows either result as HTML.
"""

from ._finding import Finding, Severity
from ._lint import READERS, LintRule
from ._page import report_page
from ._repair import repair
from ._repaired import LostSample, Repair, ShardRepair
from ._verify import Verification, verify

__all__ = [
    "READERS",
    "Finding",
    "LintRule",
    "LostSample",
    "Repair",
    "Severity",
    "ShardRepair",
    "Verification",
    "repair",
    "report_page",
    "verify",
]
