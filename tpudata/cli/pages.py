"""Pages of the documentation for `tpudata help PAGE`, from the installed package or from the clone that Python imports."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tpudata.cli import COMMANDS

_PACKAGE = Path(__file__).resolve().parents[1]
# setup.py copies docs/ into the package.
_FOLDERS = (_PACKAGE / "docs", _PACKAGE.parent / "docs")
# Folders of pages, in the order of the site.
SECTIONS = ("tutorials", "convert", "dataset", "feed", "train", "concepts", "reference")


@dataclass(frozen=True)
class Page:
    """A page of the documentation.

    Attributes:
        name: its path in the folder of the documentation, without a suffix, such as `reference/sources`.
        file: path of its Markdown file.
    """

    name: str
    file: Path

    @property
    def title(self) -> str:
        """The text of its first heading."""
        with self.file.open(encoding="utf-8") as lines:
            return next(line for line in lines if line.startswith("# ")).removeprefix("# ").strip()

    def read_sections(self) -> list[tuple[str, str]]:
        """Return the heading and the text of each section; the text begins with the line of the heading."""
        sections: list[tuple[str, list[str]]] = []
        is_in_code_block = False
        for line in self.file.read_text("utf-8").splitlines():
            # The line before a code block and the line after it begin with ```; between them, `#` is a comment.
            is_in_code_block ^= line.startswith("```")
            # The first line of a page is a heading.
            if not is_in_code_block and re.match("#{1,3} ", line):
                sections.append((line.lstrip("# "), []))
            sections[-1][1].append(line)
        return [(heading, "\n".join(lines)) for heading, lines in sections]

    def render_text(self, short_names: dict[str, str]) -> str:
        """Return the page for a terminal: links to pages become `tpudata help` commands, and pictures are omitted.

        Args:
            short_names: the short name of each page, by its full name (see `find_short_names`).
        """

        def format_link(link: re.Match[str]) -> str:
            """Return the text for a link: its label, with its address or its command in parentheses, if it has any."""
            label, target = link.groups()
            if re.match(r"https?:", target):
                return f"{label} ({target})"
            path = posixpath.normpath(PurePosixPath(self.name).parent / target.partition("#")[0])
            short_name = short_names.get(path.removesuffix(".md"))
            return f"{label} (tpudata help {short_name})" if short_name else label

        without_pictures = re.sub(r"^!\[[^]]*\]\([^)]*\)\n\n?", "", self.file.read_text("utf-8"), flags=re.MULTILINE)
        return re.sub(r"\[([^]]*)\]\(([^)\s]*)\)", format_link, without_pictures)


def list_pages() -> list[Page]:
    """Return the pages, section by section; an empty list if the installation has no pages."""
    folder = next((folder for folder in _FOLDERS if folder.is_dir()), None)
    if folder is None:
        return []
    files = [file for section in SECTIONS for file in sorted((folder / section).glob("*.md"))]
    return [Page(file.relative_to(folder).with_suffix("").as_posix(), file) for file in files]


def find_short_names(pages: list[Page]) -> dict[str, str]:
    """Return the short name of each page by its full name: the file's name, unless another page or a command has it."""
    used_names = [page.file.stem for page in pages] + [*COMMANDS]
    return {page.name: page.file.stem if used_names.count(page.file.stem) == 1 else page.name for page in pages}
