"""Read traces back through mlcommons/chakra's own schema, where that is installed.

An independent reading: nothing of our decoder is used, every message goes through protobuf.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from moxtrace.chakra.astra_inputs import TRACES
from moxtrace.errors import ExternalToolError
from moxtrace.rundir import Run

__all__ = ["read_back", "schema"]


def schema() -> ModuleType:
    """mlcommons/chakra's generated ``et_def_pb2``.

    Raises
    ------
    ExternalToolError
        When it cannot be imported; PyPI's ``chakra`` is another project.
    """
    try:
        from chakra.schema.protobuf import et_def_pb2  # type: ignore[import-not-found]
    except ImportError as error:
        raise ExternalToolError(
            f"verify --chakra: mlcommons/chakra cannot be imported ({error}); it is on no package index "
            "(PyPI's 'chakra' is another project): install it from its repository"
        ) from None
    except TypeError as error:  # protobuf's complaint about generated code of another release
        raise ExternalToolError(
            "verify --chakra: mlcommons/chakra does not fit the installed protobuf: "
            f"{str(error).splitlines()[0]}"
        ) from None
    return et_def_pb2


def _frames(data: bytes) -> list[bytes]:
    """Length-delimited messages of a file."""
    frames, at = [], 0
    while at < len(data):
        length = shift = 0
        while True:
            byte = data[at]
            at += 1
            length |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        frames.append(data[at : at + length])
        at += length
    return frames


def read_back(run: Run) -> list[str]:
    """Problems that the schema has with the traces of a run directory.

    Every file must parse, hold as many nodes as the manifest says, and every communication node must carry
    the attributes that ASTRA-sim's feeder asks for.
    """
    et_def = schema()
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    needs = {
        et_def.COMM_SEND_NODE: {"is_cpu_op", "comm_dst", "comm_size", "comm_tag"},
        et_def.COMM_RECV_NODE: {"is_cpu_op", "comm_src", "comm_size", "comm_tag"},
        et_def.COMM_COLL_NODE: {"is_cpu_op", "comm_type", "comm_size"},
    }
    problems = []
    for name, facts in run.manifest["files"].items():
        if not name.startswith(f"{TRACES}/"):
            continue
        try:
            first, *rest = _frames((run.path / Path(name)).read_bytes())
            et_def.GlobalMetadata.FromString(first)
            nodes = [et_def.Node.FromString(frame) for frame in rest]
        except (DecodeError, IndexError, ValueError, OSError) as error:
            problems.append(f"{name}: chakra's schema cannot read it: {error}")
            continue
        if len(nodes) != facts["nodes"]:
            problems.append(f"{name}: chakra reads {len(nodes)} nodes; the manifest says {facts['nodes']}")
        for node in nodes:
            missing = needs.get(node.type, set()) - {a.name for a in node.attr}
            if missing:
                problems.append(f"{name}: node {node.id} lacks {', '.join(sorted(missing))}")
                break
    return problems
