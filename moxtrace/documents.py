"""YAML documents that know the line of every key, and a schema's complaints in our words.

Goes in: a YAML file.  Comes out: :class:`Document`, plain values and where each stands.  Configurations and
sweeps are read through it, so their errors look alike.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from moxtrace.errors import ConfigError

__all__ = ["Document", "explain", "parse_value", "read_document"]


class _Loader(yaml.SafeLoader):
    """YAML 1.1 as everybody writes it: ``1e9`` is a number too, though the standard wants ``1.0e+9``."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?[0-9][0-9_]*(?:\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


class Document:
    """A YAML document with the line of every key.

    Parameters
    ----------
    path : path
        Of the file, for messages.
    text : str

    Raises
    ------
    ConfigError
        When the text is no YAML, a key stands twice, or there are no blocks.
    """

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.prefix = ""
        self.lines: dict[tuple[str | int, ...], int] = {}
        try:
            node = yaml.compose(text, Loader=_Loader)
            self.value = {} if node is None else self._plain(node, ())
        except RecursionError:
            raise ConfigError(
                f"{path}: YAML syntax: an alias that contains itself, or too deep a nesting"
            ) from None
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = mark.line + 1 if mark else 1
            raise ConfigError(f"{path}:{line}: YAML syntax: {error.problem or error.context}") from None
        except yaml.YAMLError as error:
            raise ConfigError(f"{path}: YAML syntax: {' '.join(str(error).split())}") from None
        if not isinstance(self.value, dict):
            raise ConfigError(f"{path}:1: found {self.value!r:.40}; expected blocks such as 'topology:'")

    def _plain(self, node: yaml.Node, at: tuple[str | int, ...]) -> Any:
        """Plain values of a node, noting lines; a key given twice is an error, as is a custom tag."""
        self.lines[at] = node.start_mark.line + 1
        if isinstance(node, yaml.MappingNode):
            result: dict[Any, Any] = {}
            for key_node, value_node in node.value:
                key = _Loader("").construct_object(key_node)
                line = key_node.start_mark.line + 1
                if not isinstance(key, str):
                    raise ConfigError(f"{self.path}:{line}: key {key!r}; expected a name")
                if key in result:
                    raise ConfigError(
                        f"{self.path}:{line}: key {'.'.join(map(str, (*at, key)))} stands twice"
                    )
                result[key] = self._plain(value_node, (*at, key))
                self.lines[(*at, key)] = line
            return result
        if isinstance(node, yaml.SequenceNode):
            return [self._plain(item, (*at, i)) for i, item in enumerate(node.value)]
        return _Loader("").construct_object(node)

    def where(self, at: Sequence[str | int]) -> str:
        """``file:line`` of a key, or of the nearest block around it."""
        for end in range(len(at), -1, -1):
            line = self.lines.get(tuple(at[:end]))
            if line is not None and end:
                return f"{self.path}:{line}"
        return str(self.path)

    def inside(self, key: str) -> Document:
        """The block below ``key`` as a document of its own, which keeps its lines."""
        inner = Document.__new__(Document)
        inner.path, inner.value, inner.prefix = self.path, self.value[key], f"{self.prefix}{key}."
        inner.lines = {at[1:]: line for at, line in self.lines.items() if at[:1] == (key,)}
        return inner


def read_document(path: Path, what: str = "configuration") -> Document:
    """Read a YAML file.

    Parameters
    ----------
    path : path
    what : str
        What the file is, for messages.

    Raises
    ------
    ConfigError
        When it cannot be read or is no YAML.
    """
    try:
        return Document(path, path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the {what}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not a text file; expected YAML in UTF-8") from None


def parse_value(text: str) -> Any:
    """One value as YAML.

    Raises
    ------
    yaml.YAMLError
        When it is none.
    """
    return yaml.load(text, Loader=_Loader)  # a safe loader


def _known_keys(root: type[BaseModel], loc: Sequence[str | int]) -> list[str]:
    """Keys of the block of ``root`` that ``loc`` lies in."""
    block: Any = root
    for key in loc:
        field = block.model_fields.get(key)
        if field is None:
            return []
        block = field.annotation
        if not (isinstance(block, type) and issubclass(block, BaseModel)):
            return []
    return list(block.model_fields)


def explain(error: Mapping[str, Any], root: type[BaseModel]) -> str:
    """One pydantic error in our words, without its key.

    Parameters
    ----------
    error : mapping
        One of ``ValidationError.errors()``.
    root : type of BaseModel
        The schema, which knows what other keys there are.
    """
    loc, kind, context = error["loc"], error["type"], error.get("ctx", {})
    found = error.get("input")
    shown = repr(found) if len(repr(found)) <= 60 else repr(found)[:57] + "..."
    if kind == "missing":
        return "missing"
    if kind == "extra_forbidden":
        known = _known_keys(root, loc[:-1])
        near = difflib.get_close_matches(str(loc[-1]), known, 1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
        return f"unknown key; {hint}"
    if kind == "literal_error":
        near = difflib.get_close_matches(str(found), re.findall("'(.*?)'", context["expected"]), 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return f"found {shown}; expected {context['expected']}{hint}"
    bounds = {"greater_than": ">", "greater_than_equal": ">=", "less_than": "<", "less_than_equal": "<="}
    if kind in bounds:
        limit = next(iter(context.values()))
        return f"found {shown}; expected a value {bounds[kind]} {limit}"
    if kind == "finite_number":
        return f"found {shown}; expected a finite number"
    types = {"int_type": "a whole number", "float_type": "a number", "string_type": "text",
             "bool_type": "true or false", "list_type": "a list", "model_type": "a block of keys",
             "dict_type": "a block of keys", "int_from_float": "a whole number"}  # fmt: skip
    if kind in types:
        return f"found {shown}; expected {types[kind]}"
    return f"found {shown}; {error['msg'][:1].lower()}{error['msg'][1:]}"
