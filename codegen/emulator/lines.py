# SPDX-License-Identifier: Apache-2.0
"""From an address in a compiled kernel to lines: of its headers, its template and its rendered text."""

from __future__ import annotations

import posixpath
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from .findings import Place

if TYPE_CHECKING:
    from ..errors import CompileError
    from ..render import KernelSource

RENDERED = "kernel.cu"
"""What lines in front of the first `#line` mark are said to be in."""
_RENDERED_CPP = "kernel.cpp"
"""The same of C++."""
OWN_LINES = "coldforge-emulator"
"""The folder that the emulator's own lines are said to be in."""
_MARK = re.compile(r'^[ \t]*#line[ \t]+(\d+)[ \t]+"([^"]+)"')
_WORD = re.compile(r"\w")
_SAID = re.compile(r"(?P<file>[^\s:()]+)(?:\((?P<nvrtc>\d+)\)|:(?P<line>\d+)(?::\d+)?):")
"""How a compiler names a line: g++ `file:12:5:`, NVRTC `file(12):`."""


@dataclass(frozen=True)
class _Stretch:
    """Consecutive lines of the rendered text that come from consecutive lines of one file."""

    file: str
    first: int  # line in the file
    rendered: int  # line in the rendered text
    count: int


@dataclass(frozen=True)
class LineMap:
    """What the `#line` marks of a rendered text say.

    Attributes:
        text: the rendered text.
        template: the template it was rendered from, if that is known: its lines are looked up there.
        rendered: what the compiler calls the text in front of the first mark.
    """

    text: str
    template: Path | None = None
    rendered: str = RENDERED

    @cached_property
    def _stretches(self) -> tuple[_Stretch, ...]:
        found: list[_Stretch] = []
        file, first, rendered, count = self.rendered, 1, 1, 0
        for number, line in enumerate(self.text.splitlines(), 1):
            mark = _MARK.match(line)
            if mark:
                found.append(_Stretch(file, first, rendered, count))
                file, first, rendered, count = mark[2], int(mark[1]), number + 1, 0
            else:
                count += 1
        found.append(_Stretch(file, first, rendered, count))
        return tuple(found)

    def place(self, file: str, line: int) -> Place:
        """The place of a line that the compiler knows by the marks."""
        for stretch in self._stretches:
            if stretch.file == file and stretch.first <= line < stretch.first + stretch.count:
                rendered = stretch.rendered + line - stretch.first
                return Place(*self._in_template(file, line, rendered), rendered)
        return Place(file, line)

    def at(self, rendered: int) -> Place:
        """The place of a line of the rendered text."""
        for stretch in self._stretches:
            if stretch.rendered <= rendered < stretch.rendered + stretch.count:
                return self.place(stretch.file, stretch.first + rendered - stretch.rendered)
        return Place(self.rendered, rendered, rendered)

    def told(self, message: str, log: str) -> tuple[str, Place | None]:
        """What a compiler said, in the template's lines.

        Args:
            message: the error, which may begin with the line that the compiler names.
            log: all that it printed: an error in a foreign header says there from where it came.

        Returns:
            The message at its place; the place, None where neither names a line of the rendered text.
        """
        said = _SAID.search(message)
        if said is None:  # what the log says beside it, a warning perhaps, need not be about it
            return message, None
        if place := self._said(said):
            return f"{message[: said.start()]}{place}:{message[said.end() :]}", place
        for said in _SAID.finditer(log):
            if place := self._said(said):
                return f"{message}, from {place}", place
        return message, None

    def _said(self, said: re.Match[str]) -> Place | None:
        place = self.place(said["file"], int(said["line"] or said["nvrtc"]))
        return place if place.rendered_line else None

    def _in_template(self, file: str, line: int, rendered: int) -> tuple[str, int]:
        """The template's own line, where one line of it has exactly this text."""
        if self.template is None or file not in (self.template.name, self.rendered):
            return file, line
        wanted = self.text.splitlines()[rendered - 1].strip()
        lines = self._template_lines
        same = (
            [number for number, text in enumerate(lines, 1) if text == wanted] if _WORD.search(wanted) else []
        )
        if len(same) == 1:
            return self.template.name, same[0]
        return f"{self.rendered} of {self.template.name}", line

    @cached_property
    def _template_lines(self) -> tuple[str, ...]:
        if self.template is None:
            return ()
        try:
            return tuple(line.strip() for line in self.template.read_text("utf-8").splitlines())
        except (OSError, UnicodeDecodeError):  # changed since: what is to be told is another error
            return ()


def quoted(error: CompileError, source: KernelSource, template: Path) -> tuple[str, Place | None]:
    """What a compiler said of a source, in the lines of the template that it was rendered from.

    The marks in the source cannot tell them: behind a header they count the lines of the rendered text.
    """
    rendered = _RENDERED_CPP if source.language == "cpp" else RENDERED
    return LineMap(source.text, template, rendered).told(str(error), error.log)


def frames(library: Path, addresses: Iterable[int]) -> dict[int, tuple[tuple[str, int], ...]]:
    """File and line of each address (from the library's start), what was inlined first; the emulator's own
    lines left out. Empty where binutils are missing or the library has no debug lines."""
    wanted = sorted(set(addresses))
    tool = shutil.which("addr2line")
    if not wanted or tool is None:
        return {}
    command = [tool, "-a", "-i", "-e", str(library), *(hex(address) for address in wanted)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout
    found: dict[int, list[tuple[str, int]]] = {}
    address = -1
    for line in answer.splitlines():
        if line.startswith("0x"):
            address = int(line, 16)
            found[address] = []
            continue
        file, _, number = line.split(" ")[0].rpartition(":")
        file = posixpath.normpath(file)
        if number.isdigit() and int(number) and not file.startswith(OWN_LINES):
            found[address].append((file, int(number)))
    return {address: tuple(places) for address, places in found.items()}
