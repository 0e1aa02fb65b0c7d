"""Rules of the house that a machine can check: imports go one way, names and docstrings keep their word."""

import ast
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import click
import pytest

import moxtrace
from moxtrace.cli import COMMANDS

ROOT = Path(moxtrace.__file__).parent
# data walks from the first to the last; a room imports only from rooms before it, or from itself
ROOMS = [
    "errors", "jit", "outputs", "machine", "shelf", "units", "documents", "kinds", "rundir", "models",
    "config", "recordings", "sampling", "placement", "coactivation", "topology", "demand", "replicas",
    "transfers", "routing", "bound", "chakra", "lowering", "verify", "engine", "baseline", "scenario",
    "failures", "generate", "simulate", "timeline", "doctor", "sweep", "plots", "report", "cli", "__main__",
]  # fmt: skip
MODULES = sorted(
    m.name for m in pkgutil.walk_packages([str(ROOT)], "moxtrace.") if m.name != "moxtrace.__main__"
)
PUBLIC = [name for name in MODULES if not name.rpartition(".")[2].startswith("_")]


def room(module: str) -> str:
    return module.split(".")[1]


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_imports_go_one_way(path):
    here = path.relative_to(ROOT).parts[0].removesuffix(".py")
    if here == "__init__":
        return
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            if node.module == "moxtrace":
                names = [f"moxtrace.{alias.name}" for alias in node.names if alias.name != "__version__"]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            if name.startswith("moxtrace."):
                assert ROOMS.index(room(name)) <= ROOMS.index(here), f"{here} imports {name}"


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_exist_and_are_documented(name):
    module = importlib.import_module(name)
    assert module.__doc__, name
    for public in getattr(module, "__all__", ()):
        value = getattr(module, public)
        if inspect.isfunction(value) or inspect.isclass(value):
            assert value.__doc__, f"{name}.{public}"


def documented(text: str) -> set[str]:
    """Names under ``Parameters`` of a docstring."""
    section = re.search(r"\n\s*Parameters\n\s*-+\n(.*?)(?:\n\s*\n\s*[A-Z][a-z]+\n\s*-+\n|\Z)", text, re.S)
    if section is None:
        return set()
    indent = re.match(r"\s*", section.group(1)).group(0)
    heads = re.findall(rf"^{indent}(\*{{0,2}}\w[\w*, ]*?) *(?::|$)", section.group(1), re.M)
    return {name.strip(" *") for head in heads for name in head.split(",")}


@pytest.mark.parametrize("name", PUBLIC)
def test_documented_parameters_are_those_of_the_signature(name):
    module = importlib.import_module(name)
    for public in getattr(module, "__all__", ()):
        value = getattr(module, public)
        if not inspect.isfunction(value) or value.__module__ != name:
            continue
        said = documented(inspect.getdoc(value) or "")
        taken = {p for p in inspect.signature(value).parameters if not p.startswith("_")}
        if said:
            assert said == taken, f"{name}.{public}"


def commands():
    for name in COMMANDS:
        command = importlib.import_module(f"moxtrace.cli.{name}").command
        if isinstance(command, click.Group):
            yield from ((f"{name} {sub}", one) for sub, one in command.commands.items())
        else:
            yield name, command


@pytest.mark.parametrize(("name", "command"), list(commands()), ids=[name for name, _ in commands()])
def test_every_command_has_help_and_an_example(name, command):
    context = click.Context(command, info_name=name, help_option_names=["-h", "--help"])
    text = command.get_help(context)
    assert command.help, name
    assert "Example" in text, name
    assert f"moxtrace {name}" in text, name
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help or parameter.name in ("help", "engine"), f"{name} {parameter.name}"


def test_the_version_is_in_the_changelog():
    changelog = ROOT.parent / "CHANGELOG.md"
    if not changelog.is_file():
        pytest.skip("installed without its source tree")
    assert f"## {moxtrace.__version__}" in changelog.read_text()
