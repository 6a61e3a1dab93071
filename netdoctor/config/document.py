"""One YAML document as plain data with the line of every value.  Strict: no aliases, no tags, no duplicate keys.

Raises `ConfigError` with file, line and key.  yaml is imported only when there is a file to read.
"""

from __future__ import annotations

import re
from typing import Any, Final

Path = tuple[str | int, ...]
MAX_BYTES: Final = 1 << 20
MAX_DEPTH: Final = 12  # the schema needs four; a deeper document would only cost recursion


class ConfigError(Exception):
    """Bad configuration (exit 2): ``FILE:LINE: KEY: what is wrong``."""

    def __init__(self, message: str, *, source: str, line: int | None = None, key: str = "") -> None:
        self.source, self.line, self.key, self.message = source, line, key, message
        where = source if line is None else f"{source}:{line}"
        super().__init__(": ".join(part for part in (where, key, message) if part))


def dotted(path: Path) -> str:
    """``("waivers", 0, "until")`` as ``waivers[0].until``."""
    out = ""
    for part in path:
        out += f"[{part}]" if isinstance(part, int) else f".{part}" if out else part
    return out


def parse(text: str, source: str) -> tuple[Any, dict[Path, int]]:
    """The document as dict, list, str, int, float, bool, None; and the line (from 1) of each path in it."""
    import yaml

    try:
        _refuse(text, source)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        tab = "; YAML indents with blanks, never with a TAB" if r"'\t'" in (error.problem or "") else ""
        raise ConfigError(f"{error.problem or 'not YAML'}{tab}", source=source, line=mark.line + 1 if mark else None) from None
    except yaml.YAMLError as error:  # a character that YAML does not allow
        raise ConfigError(str(error).splitlines()[0], source=source) from None
    lines: dict[Path, int] = {(): 1}
    return (None if node is None else _value(node, (), source, lines)), lines


def _refuse(text: str, source: str) -> None:
    """Refuse before anything is built what could be large (aliases), deep, or something else than data (tags)."""
    import yaml

    depth = documents = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = event.start_mark.line + 1 if event.start_mark else None
        if isinstance(event, yaml.AliasEvent):
            raise ConfigError(
                "aliases are not allowed here; write the value out", source=source, line=line, key=f"*{event.anchor}"
            )
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise ConfigError("a second document; the configuration is one", source=source, line=line)
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise ConfigError(f"nested deeper than {MAX_DEPTH} levels", source=source, line=line)
        if isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise ConfigError(f"the tag {tag} is not allowed here", source=source, line=line)


def _value(node: Any, path: Path, source: str, lines: dict[Path, int]) -> Any:
    import yaml

    lines[path] = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        out: dict[str, Any] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError("a key must be a word", source=source, line=line, key=dotted(path))
            here = (*path, key.value)
            if key.value in out:
                first = lines[here]
                raise ConfigError(f"given twice, first in line {first}", source=source, line=line, key=dotted(here))
            out[key.value] = _value(value, here, source, lines)
            lines[here] = line
        return out
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, (*path, index), source, lines) for index, item in enumerate(node.value)]
    return _scalar(node)


_INT: Final = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
_FLOAT: Final = re.compile(r"[-+]?[0-9]{1,18}(\.[0-9]*)?([eE][-+]?[0-9]{1,2})?")


def _scalar(node: Any) -> Any:
    """Text stays text if it is quoted, or looks like what YAML 1.1 reads in surprising ways (010, 1:30, dates)."""
    text = node.value
    kind = node.tag.rpartition(":")[2]
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() in {"true", "yes", "on"}
    if kind == "int" and _INT.fullmatch(text):
        return int(text)
    if kind in {"float", "int"} and _FLOAT.fullmatch(text) and not re.fullmatch(r"0[0-9]+", text):
        return float(text)
    return text
