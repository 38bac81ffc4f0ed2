"""Pages of the documentation: blocks, commands, headings, and sections of methods."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from command_factory import run_command
from video_factory import write_label_maps, write_video

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
METHODS = [page for page in PAGES if page.parent.name == "methods" and page.stem != "index"]
DIFFERENCES = "**Differences from the paper"
FENCE = re.compile(r"^```(\w*)[ ]?(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELLS = ("sh", "bash", "console")


@dataclass(frozen=True)
class Block:
    """A fenced block; one with a file's name is that file."""

    language: str
    name: str
    text: str


@dataclass(frozen=True)
class Section:
    """A section of a page that describes the methods that the index links to it."""

    page: str
    anchor: str
    covers: tuple[str, ...]  # KIND/NAME
    text: str

    @property
    def differences(self) -> str:
        return self.text.partition(DIFFERENCES)[2]


def blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in FENCE.findall(page.read_text(encoding="utf-8"))]


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def shell_lines(page: Path) -> list[str]:
    """List the commands of the shell blocks of a page, without prompts and comments."""
    lines = [line for block in blocks(page) if block.language in SHELLS for line in block.text.splitlines()]
    return [line.removeprefix("$ ").partition("  #")[0].rstrip() for line in lines]


def commands(page: Path) -> list[str]:
    """List each `driftlab ...` line of a shell block, and each in the text with a word more."""
    spans = re.findall(r"`(driftlab [^`]+)`", prose(page).replace("\n", " "))
    return [line for line in shell_lines(page) if line.startswith("driftlab ")] + spans


def anchor_of(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return {anchor_of(title) for title in re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)}


def section(page: Path, anchor: str) -> str:
    """Return the text below the heading of an anchor, up to the next heading."""
    _, *parts = re.split(r"^#+ (.+)$", prose(page), flags=re.MULTILINE)
    return dict(zip(map(anchor_of, parts[::2]), parts[1::2], strict=True))[anchor]


def method_sections(index: Path = DOCS / "methods/index.md") -> list[Section]:
    """List the sections that the index of methods links to names."""
    links = dict(re.findall(r"\[(\w+/[^\]]+)\]\(([^)]+)\)", index.read_text(encoding="utf-8")))
    assert len(links) == len(re.findall(r"\[\w+/", index.read_text(encoding="utf-8")))
    places = [(name, *target.split("#")) for name, target in links.items()]
    texts = {(page, anchor): section(index.with_name(page), anchor) for _, page, anchor in places}
    return [
        Section(*place, tuple(name for name, *other in places if tuple(other) == place), text)
        for place, text in texts.items()
    ]


def write_files(page: Path, folder: Path) -> None:
    """Write the files of a page, the examples that it links, and their videos."""
    linked = re.findall(r"\]\(examples/([^)]+)\)", prose(page))
    texts = {name: (DOCS / "examples" / name).read_text(encoding="utf-8") for name in linked}
    texts |= {block.name: block.text for block in blocks(page) if block.name}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    for film in {film for text in texts.values() for film in re.findall(r'name: "video:([\w.]+)"', text)}:
        write_label_maps(write_video(folder / film))


def invoke(words: list[str], codes: Collection[int] = (0,)) -> str:
    """Run a command in this process and return its output; it must exit with one of these codes."""
    result = run_command(words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code in codes, result.output
    return result.output
