"""The ``shoal`` command: look into datasets, index them, verify them, make them and take them apart.

One module a command. ``_app`` puts them together and makes one sentence and an exit code of each error; ``_output``
prints.
"""

from ._app import main

__all__ = ["main"]
