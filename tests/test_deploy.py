"""The pages on hosts: settings of the tutorial are settings, flags are flags, links lead somewhere."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower comes with fedkin[flower]")

from fedkin.experiment.settings import settings_from
from fedkin_hosts.commands import hosts, nodes
from fedkin_hosts.node import Node

ROOT = Path(__file__).parents[1]
TEXT, TUTORIAL = ((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("deploy", "tutorial-hosts"))
KINDS: dict[str, Any] = {
    "keys authority": hosts.AuthorityFlags,
    "keys server": hosts.ServerFlags,
    "keys node": hosts.NodeKeyFlags,
    "link": hosts.LinkFlags,
    "node": Node,
    "submit": nodes.Submission,
    "status": hosts.StatusFlags,
}


def commands() -> list[str]:
    """Every command of both pages, in blocks and in sentences, on one line each."""
    flat = f"{TEXT}\n{TUTORIAL}".replace("\\\n", " ")
    return re.findall(r"(?:^|`|bin/)(fedkin (?:keys \w+|link|node|submit|status)[^`\n]*)", flat, re.MULTILINE)


def test_its_settings_are_settings() -> None:
    """The file of the example is read without complaint; three clients are waited for."""
    block = re.search(r"```toml[^\n]*\n(.*?)```", TUTORIAL, re.DOTALL)
    assert block is not None
    settings = settings_from(tomllib.loads(block.group(1)), "docs/tutorial-hosts.md")
    assert (settings.method["name"], settings.run.rounds, settings.hosts.min_clients) == ("pfedcs", 10, 3)


def test_its_flags_are_flags() -> None:
    """No command of the pages has a flag that the program does not know; all commands occur."""
    seen = set()
    for command in commands():
        words = command.split()
        name = " ".join(words[1:3]) if words[1] == "keys" else words[1]
        known = {"--" + f.name.replace("_", "-") for f in fields(KINDS[name])}
        known |= {"--no-" + f.name for f in fields(KINDS[name]) if f.type in (bool, "bool")}
        used = {word for word in words if word.startswith("--")}
        assert used <= known, command
        seen.add(name)
    assert seen == set(KINDS)


def test_its_links_lead_somewhere() -> None:
    """Files beside it exist, and headings on it."""
    headings = {
        re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in re.findall(r"^#+ (.*)$", TEXT, re.MULTILINE)
    }
    for link in re.findall(r"\]\(([^)]+)\)", TEXT):
        if link.startswith("#"):
            assert link[1:] in headings, link
        elif not link.startswith("http"):
            assert (ROOT / "docs" / link.partition("#")[0]).exists(), link
