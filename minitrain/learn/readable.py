"""Which files a submission's process may read: Python's own, the system's libraries, and the packages it needs.

Landlock and bubblewrap allow whole folders. Where something that must not be read lies below a folder that may be
(packages below the standard library, say), the folder is opened up: its entries are allowed one by one, and that one
is left out.
"""

from __future__ import annotations

import importlib.util
import re
import site
import stat
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

PACKAGES = (
    "numpy", "numpy.libs", "pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection",
)  # fmt: skip
"""What a submission may import beside the standard library and minitrain: numpy, and what minitrain's configs need."""

_NO_LIBRARY = frozenset({"site-packages", "dist-packages", "test", "idlelib", "turtledemo", "ensurepip"})
_LIBRARIES = ("/lib64", "/usr/lib64", "/lib", "/usr/lib")


@lru_cache(maxsize=1)
def packages() -> dict[str, Path]:
    """Return where the packages are that a submission may import, by name, as far as they are installed."""
    found: dict[str, Path] = {}
    for name in PACKAGES:
        path = Path(found["numpy"].parent, name) if name == "numpy.libs" and "numpy" in found else _location(name)
        if path is not None and path.exists():
            found[name] = path.resolve()
    return found


def _location(name: str) -> Path | None:
    """Return the folder or file of a package or module."""
    spec = importlib.util.find_spec(name) if "." not in name else None
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent if spec.submodule_search_locations else Path(spec.origin)


def python_folders() -> list[Path]:
    """Return the folders of the standard library."""
    paths = [sysconfig.get_path("stdlib"), sysconfig.get_config_var("DESTSHARED") or ""]
    return _unique(Path(path) for path in paths if path and Path(path).is_dir())


def library_folders() -> list[Path]:
    """Return the folders of the system's shared libraries, and of those that this process has loaded for Python."""
    multiarch = sysconfig.get_config_var("MULTIARCH") or "no-such-folder"
    own = {sysconfig.get_config_var("LIBDIR") or "", *_folders_of_loaded("libc.so", "libpython", "ld-")}
    paths = [*(f"{folder}/{multiarch}" for folder in ("/lib", "/usr/lib")), *own, *_LIBRARIES]
    return _unique(Path(path) for path in paths if path and Path(path).is_dir())


def _folders_of_loaded(*names: str) -> set[str]:
    """Return the folders of loaded libraries whose names begin like one of some."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return set()
    return {
        folder for folder, name in re.findall(r" (/[^\n]*)/([^/\n]+)$", maps, re.MULTILINE) if name.startswith(names)
    }


def _unique(paths: Iterable[Path]) -> list[Path]:
    """Return paths as they really are, each once, in their order."""
    return list(dict.fromkeys(path.resolve() for path in paths))


def readable(secrets: Sequence[Path]) -> list[str]:
    """Return the paths that a submission's process may read, beside its own folder.

    Args:
        secrets: what it may not read, even where it lies below one of them.
    """
    hidden = _unique([*secrets, *package_folders()])
    found = [Path("/etc/ld.so.cache")]
    for folder in python_folders():
        found += _opened_up(folder, [*hidden, *(folder / name for name in _NO_LIBRARY)])
    for folder in library_folders():
        found += _shared_objects(folder) if _may_hold_packages(folder) else _opened_up(folder, hidden)
    allowed = [path for path in found if not any(path.is_relative_to(secret) for secret in hidden)]
    return sorted({str(path) for path in (*allowed, *packages().values())})


def _may_hold_packages(folder: Path) -> bool:
    """Return whether Python packages may lie below a folder of libraries, so that it is not allowed as a whole."""
    return str(folder) in (*_LIBRARIES, sysconfig.get_config_var("LIBDIR")) or any(folder.glob("python*"))


def _shared_objects(folder: Path) -> Iterator[Path]:
    """Yield the shared libraries that lie directly in a folder."""
    return (path.resolve() for path in folder.iterdir() if ".so" in path.suffixes and path.is_file())


def _opened_up(path: Path, secrets: Sequence[Path]) -> Iterator[Path]:
    """Yield a path, or what lies below it, so that none of it is or holds a secret."""
    if path in secrets:
        return
    if not any(secret.is_relative_to(path) for secret in secrets):
        yield path
        return
    for entry in path.iterdir():
        if not entry.is_symlink():
            yield from _opened_up(entry, secrets)


def mounts(secrets: Sequence[Path], *own: Path) -> tuple[list[str], list[str], list[str]]:
    """Return what a mount namespace shows: folders as a whole, folders to be emptied below them, and what comes back.

    Args:
        secrets: what must not be read.
        own: further paths to show.
    """
    system = (Path("/etc/ld.so.cache"), Path("/etc/alternatives"))  # the latter: links between libraries on Debian
    whole = [path for path in (*python_folders(), *library_folders(), *system) if path.exists()]
    outer = [path for path in whole if not any(path != other and path.is_relative_to(other) for other in whole)]
    found = [*_unique([*secrets, *package_folders()]), *(path for folder in whole for path in _packages_below(folder))]
    empty = {str(path) for path in found if path.is_dir() and any(path.is_relative_to(other) for other in outer)}
    return [str(path) for path in outer], sorted(empty), [str(path) for path in (*packages().values(), *own)]


def _packages_below(folder: Path) -> Iterator[Path]:
    """Yield the folders of installed packages below a folder of libraries."""
    for pattern in ("*-packages", "python*/*-packages"):
        yield from (path for path in folder.glob(pattern) if path.name in _NO_LIBRARY)


def package_folders() -> list[Path]:
    """Return the folders of installed packages, which a submission sees only what it needs of."""
    paths = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()]
    paths += [path for path in sys.path if Path(path).name in _NO_LIBRARY]
    return _unique(map(Path, paths))


def reachable(paths: Iterable[str], *, alone: bool) -> bool:
    """Return whether an unprivileged user can read some paths.

    Args:
        paths: what to read.
        alone: whether only the paths count and not the folders above them, which a mount namespace replaces.
    """
    existing = [Path(path) for path in paths if Path(path).exists()]
    above = set() if alone else {parent for path in existing for parent in path.parents}
    return all(_open_to_others(path) for path in existing) and all(
        parent.stat().st_mode & stat.S_IXOTH for parent in above
    )


def _open_to_others(path: Path) -> bool:
    """Return whether others may read a file, or list and enter a folder."""
    wanted = stat.S_IROTH | stat.S_IXOTH if path.is_dir() else stat.S_IROTH
    return path.stat().st_mode & wanted == wanted
