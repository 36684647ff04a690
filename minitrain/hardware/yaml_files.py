"""Hardware configs as YAML: the same data as JSON, and the `hardware_profile:` files of the virtual platform.

PyYAML follows YAML 1.1, where `1e3` is text and `on` is true. Here numbers are those of YAML 1.2, and true and false
are spelled so. Anchors are refused: nobody needs them in a config, and a few lines of them can describe gigabytes.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from minitrain.hardware.config_faults import TOO_DEEP, refuse

_FLOAT = re.compile(r"^[-+]?(\.[0-9_]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?$")
_INT = re.compile(r"^[-+]?[0-9][0-9_]*$")
_BOOL = re.compile(r"^(true|True|TRUE|false|False|FALSE)$")
_NULL = re.compile(r"^(~|null|Null|NULL|)$")
_SHAPES = (("bool", _BOOL), ("null", _NULL), ("float", _FLOAT))
_MAX_DIGITS = 400


def is_yaml(label: str) -> bool:
    """Whether a file's name says that it is YAML."""
    return label.lower().endswith((".yaml", ".yml"))


def parse_yaml(text: str, label: str, make_object: Any) -> Any:
    """Return the data of a YAML text.

    Args:
        text: the content of a file.
        label: what messages call the config.
        make_object: makes an object of its (key, value) pairs.

    Returns:
        Whatever the text holds.

    Raises:
        HardwareConfigError: it is not YAML, has anchors, or is nested too deeply to be read.
    """
    import yaml  # noqa: PLC0415 - only where a file is YAML

    try:
        return _loader(make_object)(text).get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise refuse(label, [f"expected YAML, found a mistake{where}: {error.problem}"]) from None
    except (yaml.YAMLError, ValueError) as error:
        raise refuse(label, [f"expected YAML, found a mistake: {str(error).splitlines()[0]}"]) from None
    except RecursionError:
        raise refuse(label, [TOO_DEEP]) from None


def _number(text: str) -> float:
    """Read a number; an integer with more digits than a float can hold becomes infinite, and so a fault."""
    plain = text.replace("_", "")
    return int(plain) if _INT.match(text) and len(plain) <= _MAX_DIGITS else float(plain)


@cache
def _loader(make_object: Any) -> Any:
    """Return the class that reads YAML as JSON would."""
    import yaml  # noqa: PLC0415

    class Loader(yaml.SafeLoader):
        """YAML with the scalars of JSON, without anchors."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                event = self.peek_event()  # type: ignore[no-untyped-call]
                problem = "anchors are not allowed; write it out"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
            return super().compose_node(parent, index)

    def mapping(loader: Any, node: Any) -> Any:
        read = [[loader.construct_object(item, deep=True) for item in pair] for pair in node.value]
        return make_object([(key if isinstance(key, str) else str(key), value) for key, value in read])

    def number(loader: Any, node: Any) -> float:
        return _number(loader.construct_scalar(node))

    Loader.yaml_implicit_resolvers = {None: [(f"tag:yaml.org,2002:{kind}", shape) for kind, shape in _SHAPES]}
    Loader.add_constructor("tag:yaml.org,2002:float", number)
    Loader.add_constructor("tag:yaml.org,2002:map", mapping)
    return Loader
