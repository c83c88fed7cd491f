"""What holds for all commands: help, exit codes, errors in one sentence, JSON, and the page of documentation."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from shoal import __version__
from shoal.cli._app import COMMANDS, app
from shoal.shard import ShardWriter

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"
NAMES = [command.__name__ for command in COMMANDS]
NETWORK = ("login", "publish", "find", "pull")
"""Commands that are about accounts, tested beside the network."""
WRITING = ("pack", "unpack", "convert", "build", "reshard", "merge")
"""Commands whose last argument is where to."""
CLICK = typer.main.get_command(app)
GROUPS = [name for name, command in CLICK.commands.items() if hasattr(command, "commands")]
"""Commands that have commands, each tested beside what it is about."""


def options(name: str) -> set[str]:
    """Every spelling of every option of a command."""
    parameters = CLICK.commands[name].params
    return {each for parameter in parameters for each in (*parameter.opts, *parameter.secondary_opts) if each[0] == "-"}


def section(name: str) -> str:
    found = re.search(rf"^## shoal {name}\n(.*?)(?=^## )", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert found, f"docs/reference/cli.md has no section `## shoal {name}`"
    return found[1]


def test_the_commands_are_those_that_were_promised():
    assert NAMES == [
        "info",
        "ls",
        "cat",
        "head",
        "index",
        "verify",
        "repair",
        "pack",
        "unpack",
        "bench",
        "plan",
        "dataload",
        "convert",
        "view",
        "build",
        "reshard",
        "merge",
        "login",
        "publish",
        "find",
        "pull",
    ]


def test_version(run):
    done = run("--version")
    assert (done.code, done.out) == (0, f"shoal {__version__}\n")


def test_help_lists_every_command_with_its_whole_sentence(run):
    done = run("--help")
    assert done.code == 0
    listed = re.findall(r"^  (\w+)  +(.*)$", done.out.partition("Commands:")[2], re.MULTILINE)
    groups = ["store", "cache", "catalog", "repo", "hub", "atmosphere"]  # each tested with what it is about
    assert [name for name, _ in listed] == [*NAMES, *groups]
    assert [text for _, text in listed if not text.endswith(".") or text.endswith("...")] == []


@pytest.mark.parametrize("name", NAMES)
def test_every_command_explains_itself_with_examples(run, name):
    done = run(name, "--help")
    assert done.code == 0
    assert len(re.findall(rf"^ +shoal {name} ", done.out.partition("Examples:")[2], re.MULTILINE)) >= 2


@pytest.mark.parametrize("name", NAMES)
def test_every_command_takes_json(name):
    assert "--json" in options(name)


@pytest.mark.parametrize("name", NAMES)
def test_the_page_says_every_option_and_no_other(name):
    told = set(re.findall(r"`(--?[a-z][a-z-]*)", "\n".join(re.findall(r"^\| `.*$", section(name), re.MULTILINE))))
    assert told == options(name) - {"--help", "-h"}


def test_the_page_has_no_section_for_a_command_that_is_not_there():
    assert re.findall(r"^## shoal (\w+)$", PAGE.read_text("utf-8"), re.MULTILINE) == [*NAMES, *GROUPS]


@pytest.mark.parametrize(
    "args",
    [["frob"], ["info"], ["info", "--frob", "x"], ["head", "x", "-n", "many"], ["index", "x", "--from", "nobody"]],
)
def test_wrong_use_is_one_sentence_and_2(run, args):
    done = run(*args)
    assert (done.code, done.data) == (2, b"")
    assert re.fullmatch(r"shoal: [^\n]+ See `shoal[^`\n]*`\.\n", done.err)


def test_no_command_at_all_shows_the_help(run):
    done = run()
    assert done.code == 2
    assert "Commands:" in done.out + done.err


def arguments(name: str, path: object, tmp_path: Path) -> list[object]:
    """The arguments that make a command look at ``path``."""
    out = [tmp_path / "out"]
    return [name, path, *(["0"] if name == "cat" else out if name in WRITING else [])]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NETWORK])
def test_a_path_that_is_not_there_is_one_sentence_and_1(run, tmp_path, name):
    done = run(*arguments(name, tmp_path / "nothing", tmp_path))
    assert (done.code, done.out) == (1, "")
    assert re.fullmatch(r"shoal: [^\n]*nothing[^\n]*\n", done.err)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NETWORK])
@pytest.mark.parametrize("wrong", ["my-pet", "My-Pets/", "my-pest.tar"])
def test_a_wrong_name_is_answered_with_the_right_one(run, tmp_path, name, wrong):
    (tmp_path / "my-pets").mkdir()
    (tmp_path / "other").mkdir()
    done = run(*arguments(name, f"{tmp_path}/{wrong}", tmp_path))
    assert done.code == 1
    assert done.err.endswith(f"no such file or folder: found {tmp_path}/{wrong}; did you mean {tmp_path}/my-pets?\n")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"pack", *NETWORK}))
def test_a_text_file_in_place_of_a_tar(run, tmp_path, name):
    (tmp_path / "notes.tar").write_text("this is no tar " * 100)
    done = run(*arguments(name, tmp_path / "notes.tar", tmp_path))
    assert done.code == 1
    assert "not a tar" in done.out + done.err
    assert name in ("verify", "repair") or re.fullmatch(r"shoal: [^\n]+\n", done.err)


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"pack", *NETWORK}))
def test_a_truncated_tar(run, tmp_path, name):
    with ShardWriter(tmp_path / "whole" / "a.tar") as writer:
        writer.write({"__key__": "a", "txt": b"hello" * 300})
    (tmp_path / "cut.tar").write_bytes((tmp_path / "whole" / "a.tar").read_bytes()[:1000])
    done = run(*arguments(name, tmp_path / "cut.tar", tmp_path))
    assert done.code == 1
    assert "ends inside a member" in done.out + done.err
    assert name in ("verify", "repair") or re.fullmatch(r"shoal: [^\n]*cut\.tar[^\n]*\n", done.err)


@pytest.mark.parametrize("name", ["ls", "head", "unpack"])
@pytest.mark.parametrize("where", ["width >>> 3", "no_such_column = 1", ""])
def test_a_bad_where_is_wrong_use(run, dataset, tmp_path, name, where):
    done = run(*arguments(name, dataset, tmp_path), "--where", where)
    assert done.code == 2
    assert re.fullmatch(r"shoal: [^\n]+\n", done.err)
    assert not (tmp_path / "out").exists()


def test_an_error_is_json_too_when_json_was_asked(run, tmp_path):
    done = run("info", tmp_path / "nothing", "--json")
    assert done.code == 1
    assert done.json["error"]["type"] == "ObjectNotFoundError"
    assert set(done.json["error"]) == {"type", "message", "shard", "key", "field", "offset"}
    assert done.err.startswith("shoal: ")


def test_debug_shows_the_traceback(run, tmp_path, monkeypatch):
    assert "Traceback" in run("--debug", "info", tmp_path / "nothing").err
    assert "Traceback" not in run("info", tmp_path / "nothing").err
    monkeypatch.setenv("SHOAL_DEBUG", "1")
    assert "Traceback" in run("info", tmp_path / "nothing").err
    monkeypatch.setenv("SHOAL_DEBUG", "0")
    assert "Traceback" not in run("info", tmp_path / "nothing").err


def test_names_from_a_tar_do_not_reach_the_terminal_as_commands(run, tmp_path):
    with ShardWriter(tmp_path / "data" / "a.tar") as writer:
        writer.write({"__key__": "a[bold]b", "txt": "\x1b[2J\x07gone"})
    done = run("head", tmp_path / "data")
    assert "a[bold]b" in done.out
    assert "\x1b" not in done.out
    assert "\x1b" not in run("cat", tmp_path / "data", "0").out


def program(*args: object) -> list[str]:
    return [sys.executable, "-c", "import sys; from shoal.cli import main; sys.exit(main())", *map(str, args)]


def test_the_installed_command_is_this_one(tmp_path):
    found = subprocess.run(
        [Path(sys.executable).with_name("shoal"), "info", tmp_path / "nothing"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, found.stdout) == (1, "")
    assert re.fullmatch(r"shoal: [^\n]+\n", found.stderr)


def test_a_reader_that_stops_reading_is_no_error_of_ours(dataset):
    with ShardWriter(dataset / "many-%06d.tar", append=True) as writer:
        for number in range(5000):
            writer.write({"__key__": f"{number:06d}", "txt": b""})
    done = subprocess.Popen(program("ls", dataset, "-l"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    done.stdout.readline()
    done.stdout.close()
    assert done.stderr.read() == b""
    done.stderr.close()
    assert done.wait() in (0, 1)


def test_wrong_use_is_a_document_as_well(run):
    done = run("info", "somewhere", "--json", "--nothing")
    assert (done.code, done.json["error"]["type"]) == (2, "OptionError")
    assert done.err.strip().endswith("--nothing. See `shoal info --help`.")


def test_the_command_is_there_as_a_module():
    done = subprocess.run([sys.executable, "-m", "shoal", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"shoal {__version__}\n"
