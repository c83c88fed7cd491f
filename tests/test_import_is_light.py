"""`import shoal` costs next to nothing: no framework, no extra, little time on top of NumPy and pyarrow."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

# What the core may load. Anything else that is not the standard library is an extra, a framework or a surprise.
CORE = {"shoal", "numpy", "pyarrow", "msgspec", "obstore", "isal", "typing_extensions", "cython_runtime"}
# Parts of the core that are dear and seldom needed.
DEAR = {"pyarrow.dataset", "pyarrow.parquet", "pyarrow.flight", "asyncio", "multiprocessing.pool", "unittest", "pydoc"}
EVERY_NAME = "import shoal; [getattr(shoal, name) for name in shoal.__all__]"
MILLISECONDS = 150


def run(code: str) -> object:
    """What the code leaves in `result`, run by a fresh interpreter away from this folder's modules."""
    program = f"{textwrap.dedent(code)}\nimport json; print(json.dumps(result))"
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def loaded_by(statement: str) -> set[str]:
    """The modules that a statement loads, beyond those any interpreter of this installation starts with."""
    return set(run(f"import sys; before = set(sys.modules); {statement}; result = sorted(set(sys.modules) - before)"))


def foreign(modules: set[str]) -> set[str]:
    tops = {module.partition(".")[0] for module in modules}
    # Names with a leading underscore are compiled parts of the packages that load them, such as `_cffi_backend`.
    return {top for top in tops if top not in sys.stdlib_module_names | CORE and not top.startswith("_")}


def test_import_loads_the_core_only():
    assert foreign(loaded_by("import shoal")) == set()


def test_import_loads_no_dear_part():
    assert loaded_by("import shoal") & DEAR == set()


def test_the_whole_front_door_loads_the_core_only():
    assert foreign(loaded_by(EVERY_NAME)) == set()


def test_a_module_is_found_when_it_is_asked_for():
    assert run("import shoal; result = [shoal.store.__name__, shoal.torch.DataLoader.__name__]") == [
        "shoal.store",
        "DataLoader",
    ]


READS = """import shoal
writer = shoal.ShardWriter("memory://light/a-%06d.tar")
with writer: [writer.write({"__key__": str(n), "cls": n, "txt": "t", "json": {"a": n, "b": None}}) for n in range(9)]
dataset = shoal.Dataset("memory://light")
found = [*dataset, dataset[3], *shoal.DataLoader(dataset, shuffle=True, batch_size=4, num_workers=0)]
"""


def test_reading_and_writing_load_the_core_only():
    """Arrow imports pandas, where it is installed, when it is given values in the usual ways."""
    program = f"import sys; before = set(sys.modules); exec({READS!r}); result = sorted(set(sys.modules) - before)"
    assert foreign(set(run(program))) == set()


def test_a_framework_would_be_seen():
    assert foreign(loaded_by("import shoal, PIL.Image")) == {"PIL"}


@pytest.mark.parametrize("statement, limit", [("import shoal", MILLISECONDS), (EVERY_NAME, 3 * MILLISECONDS)])
def test_import_takes_little_time(statement, limit):
    # CPU time of the one process, the best of several: other work on the machine can only add to it.
    code = f"""
        import numpy, pyarrow, time
        start = time.process_time()
        {statement}
        result = 1000 * (time.process_time() - start)
    """
    assert min(run(code) for _ in range(7)) < limit
