"""What `make dist` runs in a new environment that has the wheel and its dependencies, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path


def main() -> None:
    """Write, read, query, load and resume; then the command."""
    import shoal

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        samples = [{"__key__": f"{n:03d}", "txt": f"text {n}", "json": {"n": n}} for n in range(100)]
        dataset = shoal.write_samples(samples, folder / "data", max_samples=40)
        _expect(len(dataset) == 100 and dataset[7]["txt"] == "text 7", "samples by position")
        _expect([one["__key__"] for one in dataset.where("n >= 98")] == ["098", "099"], "a query")
        loader = shoal.DataLoader(dataset, batch_size=10, shuffle=True, seed=1)
        whole = [key for batch in loader for key in batch["__key__"]]
        _expect(sorted(whole) == [sample["__key__"] for sample in samples], "an epoch, each sample once")
        running = shoal.DataLoader(dataset, batch_size=10, shuffle=True, seed=1)
        first = next(iter(running))["__key__"]
        later = shoal.DataLoader(dataset, batch_size=10, shuffle=True, seed=1, num_workers=0)
        later.load_state_dict(running.state_dict())
        _expect([*first, *(key for batch in later for key in batch["__key__"])] == whole, "a resumed epoch")
        with tarfile.open(min((folder / "data").glob("*.tar"))) as tar:
            _expect(tar.getnames()[:2] == ["000.txt", "000.json"], "a plain tar")
        done = subprocess.run(
            [Path(sys.executable).parent / "shoal", "info", folder / "data"], capture_output=True, text=True, check=True
        )
        _expect("100" in done.stdout, "the command")
    print(f"shoal {shoal.__version__}: the wheel works")


def _expect(is_so: bool, what: str) -> None:
    if not is_so:
        sys.exit(f"{what}: not as expected")


if __name__ == "__main__":
    main()
