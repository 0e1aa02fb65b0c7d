"""The error tree: everything that moxtrace raises on purpose.

A message is one line: where it happened, what was found, what was expected and how to mend it.
The command line prints it on stderr and exits with status 1; any other exception is a bug and keeps its
traceback.
"""

__all__ = [
    "ConfigError",
    "ExternalToolError",
    "MoxtraceError",
    "OutputError",
    "RecordingError",
    "RoutingError",
    "SimulationError",
    "TopologyError",
    "TraceError",
]


class MoxtraceError(Exception):
    """Root of the tree."""


class ConfigError(MoxtraceError):
    """A configuration, a command-line value or a combination of them that cannot be carried out."""


class RecordingError(MoxtraceError):
    """A recording that cannot be read, or whose popularity no sampler can realise."""


class TopologyError(MoxtraceError):
    """A graph that cannot be built, read or used as a network."""


class RoutingError(MoxtraceError):
    """Routes or weights that do not fit the topology or the demand."""


class TraceError(MoxtraceError):
    """An execution trace that is malformed or inconsistent."""


class SimulationError(MoxtraceError):
    """A simulation that cannot finish: a deadlock, a missing receive, a mismatch."""


class ExternalToolError(MoxtraceError):
    """ASTRA-sim or another tool that is missing or failed."""


class OutputError(MoxtraceError):
    """An output that cannot be written where it was asked for."""
