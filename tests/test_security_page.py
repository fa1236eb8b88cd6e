"""docs/security.md: each test that it names exists, its flags are flags, its links lead somewhere."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from fedkin_hosts.node import Node

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")


def headings(text: str) -> set[str]:
    """The anchors of a page's headings."""
    return {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}


def test_the_tests_of_its_table_exist() -> None:
    """Every row of the table of threats names tests, and each of them is a function of that file."""
    rows = TEXT.split("## Threats and mitigations")[1].split("\n## ")[0].splitlines()
    rows = [row for row in rows if row.startswith("|")][2:]
    assert len(rows) > 30
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row.rsplit("|", 2)[1])
        assert named, row
        for file, name in named:
            assert f"\ndef {name}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{name}"


def test_its_flags_are_flags() -> None:
    """The page names the flags of `fedkin node` as they are."""
    known = {"--" + f.name.replace("_", "-") for f in fields(Node)}
    used = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", TEXT))
    assert used - known == set()
    assert {"--allow-code", "--only-masked", "--peers", "--keep-scores", "--target"} <= used


def test_its_links_lead_somewhere() -> None:
    """Files beside it exist, and so do the headings on it that other pages link to."""
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", TEXT):
        assert (ROOT / "docs" / link).exists(), link
    for page in (ROOT / "docs").glob("*.md"):
        for anchor in re.findall(r"\(security\.md#([^)]+)\)", page.read_text(encoding="utf-8")):
            assert anchor in headings(TEXT), f"{page.name}: {anchor}"
