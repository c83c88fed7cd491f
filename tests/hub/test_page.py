"""The page on the Hub, run as it is written, against a hub of its own."""

from __future__ import annotations

import re

from tests.hub.server import TOKEN
from tests.test_docs import DOCS, blocks, run_block

PAGE = DOCS / "how-to" / "hugging-face-hub.md"
PEERS_OWN = re.compile(r"from datasets import")
"""`datasets` reads the environment as it is imported: tests/hub/test_peers.py reads with it, in another process."""


def test_every_block_of_the_page_runs(hub, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAB_TOKEN", TOKEN)
    namespace = {"__name__": "__page__"}
    found = [block for block in blocks(PAGE.read_text("utf-8")) if not PEERS_OWN.search(block.code)]
    assert len(found) == 7
    for block in found:
        run_block(block, str(PAGE), namespace)
    assert f"{hub.url}/datasets/org/pets" in capsys.readouterr().out
    assert hub.repos["dataset", "org/pets"].private
