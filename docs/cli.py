"""Write the tables of options in docs/cli.md, from what the help of commands says: `python docs/cli.py`.

A table stands between `<!-- options: COMMAND ... -->` and `<!-- end -->`. Options of several commands stand in it once,
and those that an earlier table has as they are share a row.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from minitrain.cli.application import loaded

PAGE = Path(__file__).with_name("cli.md")
_TABLE = re.compile(r"(<!-- options: ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def refreshed(text: str) -> str:
    """Return a page with tables that say what the help of its commands says."""
    known: dict[str, str] = {}
    return _TABLE.sub(lambda found: f"{found[1]}{_table(found[2].split(), known)}{found[3]}", text)


def _table(commands: list[str], known: dict[str, str]) -> str:
    """Return the table of some commands, and note its rows by option."""
    rows: dict[str, str] = {}
    takers: dict[str, list[str]] = {}
    for command in commands:
        for option in loaded(command).params:
            if option.param_type_name == "option":
                name, row = _row(option)
                rows.setdefault(name, row)
                takers.setdefault(name, []).append(command)
    again = [name for name, row in rows.items() if known.get(name) == row]
    listed = [f"| {', '.join(name.split(',')[0].split()[0] for name in again)} | as above | |"] if again else []
    for name, row in rows.items():
        if name not in again:
            alone = f" (`{' '.join(takers[name])}`)" if len(takers[name]) < len(commands) else ""
            listed.append(f"| {name} | {row.format(alone=alone)} |")
            known.setdefault(name, row)
    return "\n".join(["| option | meaning | default |", "|---|---|---|", *listed, ""])


def _row(option: Any) -> tuple[str, str]:
    """Return how an option is written, with its value, and what it means and is by default."""
    flags = ", ".join(f"`{flag}`" for flag in (*option.opts, *option.secondary_opts))
    metavar = f" `{option.metavar}`" if option.metavar else ""
    about = (option.help or "").rstrip(".").replace("|", r"\|").replace("{", "{{").replace("}", "}}")
    default = option.show_default if isinstance(option.show_default, str) else _default(option)
    return f"{flags}{metavar}", f"{about}{{alone}} | {default}"


def _default(option: Any) -> str:
    """Return the default of an option in words, nothing for none."""
    value = option.default() if callable(option.default) else option.default
    if option.required or value is True:
        return "must be given" if option.required else f"`{option.opts[0]}`"
    return "" if value in (None, False, "", ...) else str(value)


if __name__ == "__main__":
    PAGE.write_text(refreshed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
