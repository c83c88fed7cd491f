"""Which of how many processes this is, as launchers tell it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from shoal.errors import OptionError

from ._options import LoaderOptions

__all__ = ["rank_and_world"]

# Each launcher's own words: torchrun and Accelerate, Open MPI, MPICH and Intel MPI, SLURM's srun.
_WORDS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


def rank_and_world(options: LoaderOptions, environment: Mapping[str, str] | None = None) -> tuple[int, int]:
    """The rank and the world size: those given, else those of the launcher, else one process alone.

    Example:
        >>> rank_and_world(LoaderOptions(), {"RANK": "1", "WORLD_SIZE": "4"})
        (1, 4)
    """
    if options.rank is not None and options.world_size is not None:
        return options.rank, options.world_size
    known = os.environ if environment is None else environment
    for rank, world in _WORDS:
        if rank in known and world in known:
            return _checked(known[rank], known[world], f"{rank} and {world}")
    return 0, 1


def _checked(rank: str, world: str, names: str) -> tuple[int, int]:
    try:
        found = int(rank), int(world)
    except ValueError:
        found = (-1, -1)
    if not 0 <= found[0] < found[1]:
        hint = "or give rank= and world_size= to the loader"
        expected = "a rank below the world size"
        raise OptionError(f"{names} make no sense", expected=expected, found=f"{rank!r} of {world!r}", hint=hint)
    return found
