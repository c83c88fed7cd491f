"""Which of how many processes this is, as launchers tell it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from shoal.errors import OptionError

__all__ = ["launched_rank"]

# Each launcher's own words: torchrun and Accelerate, Open MPI, MPICH and Intel MPI, SLURM's srun.
_WORDS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


def launched_rank(environment: Mapping[str, str] | None = None) -> tuple[int, int]:
    """The rank and the world size that the launcher tells; one process alone where there is none.

    Raises:
        OptionError: what it tells makes no sense.

    Example:
        >>> launched_rank({"RANK": "1", "WORLD_SIZE": "4"}), launched_rank({})
        ((1, 4), (0, 1))
    """
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
