"""ASTRA-sim's own input files, filled in from the templates of ``astra_configs/``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from string import Template

from moxtrace.errors import OutputError
from moxtrace.topology.graph import Topology
from moxtrace.units import cycles_per_ns, gbps_to_gibps, gibps_to_bytes_per_ns

__all__ = ["TRACES", "cannot_express", "network_bytes_per_cycle", "network_numbers", "write_inputs"]

TRACES = "traces"


def _template(name: str) -> Template:
    """A template, from the installed package or from the source tree."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "astra_configs", package.parent / "astra_configs"):
        if (folder / name).is_file():
            return Template((folder / name).read_text(encoding="utf-8"))
    raise OutputError(f"template {name}: not found beside the package; reinstall moxtrace")


def cannot_express(topology: Topology) -> str | None:
    """Why ASTRA-sim's analytical network cannot be told this topology; None if it can."""
    if topology.is_uniform:
        return None
    if (topology.lanes > 1).any():
        return "has parallel lanes, and ASTRA-sim's analytical network has one link per pair"
    return "has unequal links, and ASTRA-sim's analytical network has one rate and one latency"


def network_numbers(topology: Topology, time_scale: str) -> tuple[str, str]:
    """Bandwidth (GiB/s) and latency (ns) as text for ``network.yml``, per cycle of the time scale.

    The text is the shortest that reads back as the same double, so whoever reads the file computes with the
    same numbers as the built-in engine.
    """
    cycles = cycles_per_ns(time_scale)
    bandwidth = gbps_to_gibps(float(topology.bandwidth_gbps[0])) / cycles
    return repr(bandwidth), repr(float(topology.latency_ns[0]) * cycles)


def network_bytes_per_cycle(topology: Topology, time_scale: str) -> float:
    """Bytes per cycle of every link, the double that ASTRA-sim computes from :func:`network_numbers`."""
    return gibps_to_bytes_per_ns(float(network_numbers(topology, time_scale)[0]))


def write_inputs(
    folder: Path, topology: Topology, collectives: Mapping[int, str], time_scale: str, description: str
) -> list[str]:
    """Write network, system, memory, map and the command line into a run directory.

    Parameters
    ----------
    folder : path
    topology : Topology
        One that :func:`cannot_express` has nothing against, or the network file is left out.
    collectives : mapping of int to str
        Workload node id to the name of the custom collective that implements it; empty for flat traces.
    time_scale : {"ps", "ns"}
    description : str
        One line for the head of the network file.

    Returns
    -------
    list of str
        Names of the files written.
    """
    values = {
        "description": description,
        "npus": topology.num_npus,
        "links": f"{topology.num_links} links",
        "time_scale": time_scale,
        "scale_note": ", divided by 1000: a cycle is 1 ps" if time_scale == "ps" else "",
        "latency_note": ", times 1000" if time_scale == "ps" else "",
        "collectives": "\n".join(f"{node}: {TRACES}/{name}" for node, name in collectives.items()),
    }
    files = {"memory.json": "memory.json"}
    files["system.json"] = "system.json" if collectives else "system_flat.json"
    if collectives:
        files["collectives.yml"] = "collectives.yml"
    if cannot_express(topology) is None:
        values["bandwidth"], values["latency"] = network_numbers(topology, time_scale)
        files["network.yml"] = "network_switch.yml" if topology.has_switch else "network.yml"
        files["run_astra_sim.sh"] = "run_astra_sim.sh"
    for name, template in files.items():
        (folder / name).write_text(_template(template).substitute(values), encoding="utf-8")
    return sorted(files)
