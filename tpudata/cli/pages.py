"""The pages of the documentation, for `tpudata help PAGE`: those in the installed package, or in the clone that Python imports."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_PACKAGE = Path(__file__).resolve().parents[1]
# setup.py copies docs/ into the package.
_FOLDERS = (_PACKAGE / "docs", _PACKAGE.parent / "docs")
# Folders of pages, in the order of the site.
SECTIONS = ("tutorials", "convert", "dataset", "feed", "train", "concepts", "reference")


@dataclass(frozen=True)
class Page:
    """A page.

    Attributes:
        name: its path without a suffix, such as `reference/sources`.
        file: its path.
    """

    name: str
    file: Path

    @property
    def title(self) -> str:
        """The text of its first heading."""
        with self.file.open(encoding="utf-8") as lines:
            return next(line for line in lines if line.startswith("# ")).removeprefix("# ").strip()

    def sections(self) -> list[tuple[str, str]]:
        """Return the heading and the text of each section; a text begins with its heading."""
        sections: list[tuple[str, list[str]]] = []
        is_code = False
        for line in self.file.read_text("utf-8").splitlines():
            is_code ^= line.startswith("```")
            if not is_code and re.match("#{1,3} ", line):
                sections.append((line.lstrip("# "), []))
            sections[-1][1].append(line)
        return [(heading, "\n".join(lines)) for heading, lines in sections]

    def text(self, short_names: dict[str, str]) -> str:
        """Return the page with the addresses of links as `tpudata help` takes them, and without pictures.

        Args:
            short_names: the shortest name of each page by its name.
        """

        def name_link(link: re.Match[str]) -> str:
            words, target = link.groups()
            if re.match(r"https?:", target):
                return f"{words} ({target})"
            parts: list[str] = []
            for part in (PurePosixPath(self.name).parent / target.partition("#")[0]).parts:
                parts = parts[:-1] if part == ".." else [*parts, part]
            name = short_names.get("/".join(parts).removesuffix(".md"))
            return f"{words} (tpudata help {name})" if name else words

        without_pictures = re.sub(r"^!\[[^]]*\]\([^)]*\)\n\n?", "", self.file.read_text("utf-8"), flags=re.MULTILINE)
        return re.sub(r"\[([^]]*)\]\(([^)\s]*)\)", name_link, without_pictures)


def all_pages() -> list[Page]:
    """Return the pages, section by section; none if neither folder is there."""
    folder = next((folder for folder in _FOLDERS if folder.is_dir()), None)
    if folder is None:
        return []
    files = [file for section in SECTIONS for file in sorted((folder / section).glob("*.md"))]
    return [Page(file.relative_to(folder).with_suffix("").as_posix(), file) for file in files]


def short_names(pages: list[Page]) -> dict[str, str]:
    """Return the shortest name of each page: its file's, unless pages of other sections or a command have the same."""
    from tpudata.cli import COMMANDS

    used_names = [page.file.stem for page in pages] + [*COMMANDS]
    return {page.name: page.file.stem if used_names.count(page.file.stem) == 1 else page.name for page in pages}
