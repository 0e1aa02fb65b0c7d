"""ASTRA-sim's input files: what is read, how paths are resolved, and what is refused."""

import json
import shutil

import numpy as np
import pytest

from moxtrace.engine.inputs import load, simulate_inputs
from moxtrace.engine.network import Network
from moxtrace.errors import ConfigError, TopologyError, TraceError
from moxtrace.topology.graph import Topology

NETWORK = "topology: [ {} ]\nnpus_count: [ {} ]\nbandwidth: [ {} ]\nlatency: [ {} ]\n"


def write(path, text):
    path.write_text(text)
    return path


@pytest.fixture
def case(shared_data, tmp_path):
    """A case that may be changed."""
    folder = tmp_path / "case"
    shutil.copytree(shared_data / "astra_sim_cases/seed1/moe8-chain", folder)
    for path in folder.iterdir():
        path.chmod(0o644)
    return folder


def files(folder):
    return folder / "workload", folder / "system.json", folder / "network.yml", folder / "memory.json"


def edit(folder, **changes):
    path = folder / "system.json"
    system = json.loads(path.read_text())
    for key, value in changes.items():
        system[key.replace("_", "-")] = value
        if value is None:
            del system[key.replace("_", "-")]
    path.write_text(json.dumps(system))


@pytest.mark.parametrize(
    ("name", "kind", "links", "first"),
    [
        ("FullyConnected", "fully-connected", 12, (0, 1)),
        ("Switch", "switch", 8, (0, 4)),
        ("Ring", "ring", 8, (0, 1)),
    ],
)
def test_network_file(tmp_path, name, kind, links, first):
    network = Network.from_astra(write(tmp_path / "n.yml", NETWORK.format(name, 4, "9.3e-05", 500)))
    assert (network.kind, network.num_npus, network.num_links) == (kind, 4, links)
    assert (network.src[0], network.dst[0]) == first
    assert set(network.bytes_per_cycle) == {9.3e-05 * 2**30 / 1e9}
    assert set(network.latency) == {500.0}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (NETWORK.format("Torus", 4, 50, 1), "topology 'Torus'; congestion-aware ASTRA-sim knows FullyConn"),
        (NETWORK.format("Ring, Switch", 4, 50, 1), "topology: .*expected a list of one"),
        (NETWORK.format("Ring", 1, 50, 1), "npus_count: 1; expected a whole number above 1"),
        (NETWORK.format("Ring", 2.5, 50, 1), "npus_count: 2.5"),
        (NETWORK.format("Ring", 4, 0, 1), "bandwidth: 0 GiB/s; expected > 0"),
        (NETWORK.format("Ring", 4, 50, -1), "latency: -1; expected >= 0"),
        (NETWORK.format("Ring", 4, "fast", 1), "bandwidth: 'fast' is no number"),
        (NETWORK.format("Ring", 4, ".inf", 1), "bandwidth: inf is no finite number"),
        ("topology: [ Ring ]\n", "npus_count is missing"),
        ("- 1\n", "expected keys topology"),
        ("topology: [\n", "not YAML"),
    ],
)
def test_network_file_that_is_no_use(tmp_path, text, words):
    path = write(tmp_path / "n.yml", text)
    with pytest.raises(ConfigError, match=words) as caught:
        Network.from_astra(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        Network.from_astra(tmp_path / "absent.yml")


def test_network_of_a_topology():
    hub = Topology("switch", 2, [0, 1, 2, 2], [2, 2, 0, 1], [100, 50, 80, 8], 2.0, 1, num_nodes=3)
    network = Network.from_topology(hub, 1_000)
    assert network.kind == "switch"
    assert network.time_scale == "ps"
    assert network.bytes_per_cycle.tolist() == [0.0125, 0.00625, 0.01, 0.001]
    assert network.latency.tolist() == [2_000.0] * 4
    two = Topology("fabric", 2, [0, 1, 2, 3, 2, 3], [2, 3, 0, 1, 3, 2], 100.0, 2.0, 1, num_nodes=4)
    with pytest.raises(TopologyError, match="only one switch"):
        Network.from_topology(two)
    assert Network.from_topology(Topology("ring", 2, [0, 1], [1, 0], 80.0, 1.0, 1)).time_scale == "ns"


def test_paths_are_taken_from_the_working_directory_first(case, tmp_path, monkeypatch):
    beside = load(*files(case))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    for path in case.glob("dispatch.*.et"):
        shutil.copy(path, tmp_path / "there" / path.name)
    write(case / "collectives.yml", "0: there/dispatch\n2: there/dispatch\n")
    here = load(*files(case))
    assert sorted(beside.collectives) == sorted(here.collectives) == [0, 2]
    assert here.collectives[0] is here.collectives[2]
    assert np.array_equal(here.collectives[0].node_id, beside.collectives[0].node_id)
    # the tags of dispatch come twice now: messages of a key match in the order of issue
    assert simulate_inputs(here).completion > simulate_inputs(beside).completion / 2


def test_one_implementation_for_all_collectives_of_a_type(case):
    (case / "collectives.yml").write_text("2: combine\n")
    before = load(*files(case))
    assert sorted(before.collectives) == [2]
    edit(case, all_to_all_implementation_custom=["dispatch"])
    said = json.loads((case / "astra_sim.json").read_text())
    assert simulate_inputs(load(*files(case))).finished.tolist() == said["finished_cycles"]
    edit(case, all_to_all_implementation_custom="dispatch")
    with pytest.raises(ConfigError, match="expected a list of one trace prefix"):
        load(*files(case))


def test_system_file_that_is_no_use(case, tmp_path):
    edit(case, preferred_dataset_splits=4)
    with pytest.raises(ConfigError, match='"preferred-dataset-splits" is 4; custom collectives need 1'):
        load(*files(case))
    edit(case, preferred_dataset_splits=None)
    with pytest.raises(ConfigError, match='"preferred-dataset-splits" is missing'):
        load(*files(case))
    edit(case, preferred_dataset_splits=1, replay_only=1)
    with pytest.raises(ConfigError, match="replay-only is set"):
        load(*files(case))
    edit(case, replay_only=0, peak_perf="fast")
    with pytest.raises(ConfigError, match="peak-perf: 'fast' is no number"):
        load(*files(case))
    edit(case, peak_perf=1, per_node_custom_implementation=3)
    with pytest.raises(ConfigError, match="expected the path of a map"):
        load(*files(case))
    edit(case, per_node_custom_implementation="collectives.yml")
    write(case / "collectives.yml", "zero: dispatch\n")
    with pytest.raises(ConfigError, match="'zero': 'dispatch'; expected 'workload node id: trace prefix'"):
        load(*files(case))
    write(case / "collectives.yml", "0: absent\n2: combine\n")
    with pytest.raises(TraceError, match="absent"):
        load(*files(case))
    write(case / "system.json", "{")
    with pytest.raises(ConfigError, match="system.json: not JSON"):
        load(*files(case))
    write(case / "system.json", "[]")
    with pytest.raises(ConfigError, match="expected an object"):
        load(*files(case))
    with pytest.raises(ConfigError, match="cannot be read"):
        load(case / "workload", tmp_path / "absent.json", case / "network.yml")


def test_ranks_and_npus_must_be_equal(case):
    write(case / "network.yml", NETWORK.format("Switch", 9, 50, 1))
    with pytest.raises(ConfigError, match="8 ranks, but npus_count in .*network.yml is 9"):
        load(*files(case))
