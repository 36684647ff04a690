"""The names that learning platforms give to collected files: whose a file is, and what its author called it.

| platform | what `helper.py` of Alice Smith is called |
|---|---|
| Canvas | `smithalice_4711_99012_helper.py`; late and once more, `smithalice_LATE_4711_99012_helper-1.py` |
| Moodle | `Alice Smith_4711_assignsubmission_file_helper.py`, or `helper.py` in such a folder |
| Blackboard | `Exercise 2_asmith_attempt_2026-11-26-10-00-00_helper.py` |
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_FORMS = (
    re.compile(r"(?P<student>[^_]+)_(?:LATE_)?(?P<number>\d+)_\d+_(?P<name>.+?)(?:-\d+)?(?P<ending>\.\w+)?"),
    re.compile(r"(?P<student>.+?)_\d+_assignsubmission_(?:file|onlinetext)_*(?P<name>.*?)(?P<ending>\.\w+)?"),
    re.compile(r".+?_(?P<student>[^_]+)_attempt_[\d-]+_(?P<name>.+?)(?P<ending>\.\w+)?"),
)


@dataclass(frozen=True, slots=True)
class Upload:
    """A file or folder as a platform has named it.

    Args:
        student: whose it is; on Canvas with the number that rosters have, as two students may have one name.
        name: what its author called it; "" for a folder that the platform has made.
    """

    student: str
    name: str


def upload_of(name: str) -> Upload | None:
    """Return what a platform's name of a file says, None if it is no such name.

    >>> upload_of("smithalice_LATE_4711_99012_02_ddp-1.py")
    Upload(student='smithalice_4711', name='02_ddp.py')
    >>> upload_of("02_ddp.py") is None
    True
    """
    match = next((match for form in _FORMS if (match := form.fullmatch(name))), None)
    if match is None:
        return None
    number = match.groupdict().get("number")
    return Upload(match["student"] + (f"_{number}" if number else ""), match["name"] + (match["ending"] or ""))


def own_name(name: str) -> str:
    """Return what the author of a file called it, whatever a platform has made of it."""
    upload = upload_of(name)
    return name if upload is None else upload.name or name
