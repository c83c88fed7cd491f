"""The indexes of other loaders (wids, Energon, DALI), taken over and given out."""

from ._dali import export_dali_idx, import_dali
from ._energon import export_tar_idx, import_energon
from ._wids import WidsShard, check_wids, export_wids, import_wids

__all__ = [
    "WidsShard",
    "check_wids",
    "export_dali_idx",
    "export_tar_idx",
    "export_wids",
    "import_dali",
    "import_energon",
    "import_wids",
]
