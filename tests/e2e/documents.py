"""A document's commands, carried out line by line on a machine; what this environment cannot do is done otherwise."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

from tests.e2e.machines import ROOT, Machine

Action = Callable[[str], None]
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def commands(document: str, section: str) -> list[list[str]]:
    """Return the blocks of commands below a heading, up to the next one."""
    text = (ROOT / "docs" / document).read_text("utf-8")
    found = {one[1]: one.end() for one in HEADING.finditer(text)}
    following = HEADING.search(text, found[section])
    text = text[found[section] : following.start() if following else len(text)]
    blocks = re.findall(r"(?:^ {4}\S.*\n)+", text, re.MULTILINE)
    return [[line.strip() for line in block.splitlines()] for block in blocks]


class Shell:
    """Carries lines out as somebody at the machine does."""

    def __init__(self, machine: Machine, otherwise: dict[str, Action]) -> None:
        """Say what is done otherwise: a pattern of lines → what takes the line."""
        self.machine, self._otherwise, self.folder = machine, otherwise, "/"

    def carry_out(self, lines: list[str]) -> list[str]:
        """Carry lines out, each of which has to succeed, and return what each printed."""
        return [self._line(line) for line in lines]

    def _line(self, line: str) -> str:
        for pattern, action in self._otherwise.items():
            if re.match(pattern, line):
                action(line)
                return ""
        if line.startswith("cd "):
            self.folder = shlex.split(line)[1]
        return self.machine.sh(line, home=self.folder, environment={"LANG": "C.UTF-8"})
