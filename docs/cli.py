"""Write the lists of options in docs/cli.md, which the help of commands explains: `python docs/cli.py`.

A list stands between `<!-- options: COMMAND ... -->` and `<!-- end -->`, with each option of these commands once; of a
command that shares many with run, those that run has not.
"""

from __future__ import annotations

import re
from pathlib import Path

from minitrain.cli.application import loaded

PAGE = Path(__file__).with_name("cli.md")
_LIST = re.compile(r"(<!-- options: ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def refreshed(text: str) -> str:
    """Return a page with the options that its commands have."""
    return _LIST.sub(lambda found: f"{found[1]}{_list(found[2].split())}{found[3]}", text)


def _list(commands: list[str]) -> str:
    """Return the options of a command; of several with their short forms, and who takes them where not all do."""
    takers: dict[str, list[str]] = {}
    common = _names("run") & _names(commands[0]) if len(commands) == 1 else set()
    common = common if len(common) > 4 else set()
    for command in commands:
        for option in loaded(command).params:
            if option.param_type_name == "option" and option.name not in common:
                name, *others = option.opts
                also = "".join(f" (`{other}`)" for other in others) if len(commands) > 1 else ""
                takers.setdefault(f"`{name}`{also}", []).append(command)
    alone = {name: f" of {each[0]}" if len(each) < len(commands) else "" for name, each in takers.items()}
    listed = ", ".join(f"{name}{alone[name]}" for name in takers)
    return f"Options: {'those of `run` that apply, and ' * bool(common)}{listed}.\n"


def _names(command: str) -> set[str | None]:
    """Return the parameters that are a command's options."""
    return {each.name for each in loaded(command).params if each.param_type_name == "option"}


if __name__ == "__main__":
    PAGE.write_text(refreshed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
