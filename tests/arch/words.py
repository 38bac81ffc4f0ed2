"""Find wording that CONTRIBUTING.md rules out, in Python files, pages and comments of YAML files.

Run it as a program to list the places: python tests/arch/words.py [PATTERN]
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypeGuard

ROOT = Path(__file__).resolve().parents[2]
MAX_SENTENCE_WORDS, MAX_SUMMARY_LENGTH = 35, 100  # words, characters
MINDS = ("hear", "know", "want", "ask", "forget", "tell", "believe", "remember")  # verbs of people, not of programs
PEOPLE = {"you", "we", "they", "user", "users", "reader", "readers", "author", "authors", "paper", "papers"}
NEVER = re.findall(
    r"\w+",
    """answer answers answered answering lesson lessons wish wishes tenant tenants visitor visitors sight sights loot
    wisdom told choosy anew dear dearer dearest surest likeness rival rivals cure mend beside nobody somebody everybody
    everyone someone whoever film films schooling twentieth hungry""",
)
NEVER_IN_NAMES = {*NEVER, "way", "ways", "need", "course", "courses", "asks", "tells", "looks", "beliefs"} - {
    "twentieth"
}
PHRASES = "of its own|of their own|way to learn|ways to learn|takes turns|take turns|gives way|makes room|for good"
VOCABULARY = re.compile(rf"\b({'|'.join(NEVER)}|{PHRASES})\b", re.IGNORECASE)
QUESTION_WORD = re.compile(r"\bwhat\b", re.IGNORECASE)
MIND = re.compile(rf"\b(\w+)(?: (?:not|never|only|still|also))? ({'|'.join(f'{verb}s?' for verb in MINDS)})\b")
PASSIVE_MIND = re.compile(r"\b(?:is|are|was|were|be|been|as) (?:told|asked)\b")
YAML_COMMENT = re.compile(r"""^(?:[^'"#]|'[^']*'|"[^"]*"|(?<=\S)#)*?(?:^|(?<=\s))#(.*)""")
OPENING = re.compile(r"(Tells?|Says?|Lets?|What|Whether|Hears?|Knows?|Who)\b")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
ENDS = (r'"""', r"'''", r'"', r"'")
# Texts, in which a # begins no comment, and comments: `tokenize`, which finds the same, takes 20 times as long.
TEXT_OR_COMMENT = re.compile("|".join([*(rf"{end}(?:\\.|[^\\])*?{end}" for end in ENDS), r"(#[^\n]*)"]), re.DOTALL)


class Finding(NamedTuple):
    """One place that breaks one pattern."""

    pattern: str
    place: str
    text: str


def findings(root: Path = ROOT) -> list[Finding]:
    """Check every Python file, page and YAML file of a checkout that git does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate"]
    listed = subprocess.check_output([*command, "*.py", "*.md", "*.yaml"], cwd=root, text=True).split()
    checks = {".py": check_python, ".md": check_page, ".yaml": check_yaml}
    return [one for path in listed for one in checks[Path(path).suffix](path, (root / path).read_text("utf-8"))]


def check_python(path: str, text: str) -> Iterator[Finding]:
    """Check the docstrings, comments, messages and names of a module."""
    tree, docstrings = ast.parse(text), set()
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and (docstring := ast.get_docstring(node)) is not None:
            line, summary = node.body[0].lineno, docstring.partition("\n")[0]
            docstrings.add(line)
            if OPENING.match(summary):
                yield Finding("opening", f"{path}:{line}", summary)
            if len(summary) > MAX_SUMMARY_LENGTH:
                yield Finding("summary", f"{path}:{line}", summary)
            yield from check_prose(f"{path}:{line}", docstring)
        for name in names_of(node):
            yield from check_name(f"{path}:{node.lineno}", name)
        if is_message(node) and node.lineno not in docstrings and not path.startswith(("tests/", "benchmarks/")):
            yield from check_prose(f"{path}:{node.lineno}", node.value)
    for line, comment in comments(text):
        yield from check_prose(f"{path}:{line}", comment.lstrip("#: "))


def comments(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of every comment of a module."""
    line = read = 0
    for found in TEXT_OR_COMMENT.finditer(text):
        if comment := found[1]:
            line, read = line + text.count("\n", read, found.start()), found.start()
            yield line + 1, comment


def is_message(node: ast.AST) -> TypeGuard[ast.Constant]:
    """Return whether a node is a text of several words: a message, a help text, a caption."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value


def names_of(node: ast.AST) -> list[str]:
    """Return the names that a node introduces."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return [node.name]
    if isinstance(node, ast.arg):
        return [node.arg]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def check_name(place: str, name: str) -> Iterator[Finding]:
    parts = {part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}
    if parts & NEVER_IN_NAMES:
        yield Finding("test_name" if name.startswith("test_") else "name", place, name)


def check_page(path: str, text: str) -> Iterator[Finding]:
    """Check the paragraphs and table cells of a page; code blocks and generated blocks are left out."""
    text = re.sub(r"```.*?```|<!-- (\w[\w ]*?)(?: [A-Z].*?)? -->.*?<!-- end of \1 -->", "", text, flags=re.DOTALL)
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*#|]|\d+\.)\s?)", text):
        for piece in paragraph.split("|") if paragraph.lstrip().startswith("|") else [paragraph]:
            yield from check_prose(path, piece)
            yield from check_length(path, piece)


def check_yaml(path: str, text: str) -> Iterator[Finding]:
    """Check the comments of a YAML file; indented lines of a comment are commands."""
    paragraph = ""
    for number, line in enumerate([*text.splitlines(), ""], 1):
        comment = found[1] if (found := YAML_COMMENT.match(line)) else ""
        if line.startswith("#") and comment.strip() and not comment.startswith("  "):
            paragraph += comment
            continue
        for piece in (paragraph, comment):
            yield from check_prose(f"{path}:{number}", piece)
            yield from check_length(f"{path}:{number}", piece)
        paragraph = ""


def check_length(place: str, text: str) -> Iterator[Finding]:
    """Check the lengths of sentences; lists of links are no sentences."""
    for sentence in sentences(text):
        if " · " not in sentence and len(re.findall(r"[\w%-]+", sentence)) > MAX_SENTENCE_WORDS:
            yield Finding("sentence", place, sentence)


def check_prose(place: str, text: str) -> Iterator[Finding]:
    """Check running text; words in backticks are code."""
    for sentence in sentences(text):
        if QUESTION_WORD.search(sentence) and not sentence.rstrip("\"'*) ").endswith("?"):
            yield Finding("what", place, sentence)
        minds = [subject for subject, _ in MIND.findall(sentence) if subject.lower() not in PEOPLE]
        if minds or PASSIVE_MIND.search(sentence):
            yield Finding("mind", place, sentence)
        for _ in VOCABULARY.findall(sentence):
            yield Finding("vocabulary", place, sentence)


def sentences(text: str) -> list[str]:
    plain = " ".join(re.sub(r"``?[^`]*``?|https?://\S+|\]\([^)]*\)", "`x`", text).split())
    return re.split(r"(?<=[.!?])\s+(?=[A-Z\"*\[`(])", plain)


if __name__ == "__main__":
    for finding in findings():
        if finding.pattern in sys.argv[1:] or not sys.argv[1:]:
            print(f"{finding.pattern}: {finding.place}: {finding.text[:150]}")  # noqa: T201
