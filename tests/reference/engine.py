"""Slow twins of the engine: closures on one event queue, dictionaries, nothing clever."""

import heapq
from collections import defaultdict

import numpy as np

from moxtrace.chakra.trace import COLL, COMP, RECV, SEND, Trace
from moxtrace.units import comp_cycles, duration_micros

PRIMES = (13, 29, 59, 127, 257, 541, 1109, 2357, 5087, 10273)


class HashSet:
    """The walk over a libstdc++ ``unordered_set`` of integers: ``items`` is its list."""

    def __init__(self):
        self.buckets, self.items = 1, []

    def insert(self, key):
        if key in self.items:
            return
        if len(self.items) + 1 > (self.buckets if self.buckets > 1 else 0):
            self.buckets = next(p for p in PRIMES if p >= 2 * self.buckets)
            old, self.items = self.items, []
            for item in old:
                self._place(item)
        self._place(key)

    def _place(self, key):
        shared = [i for i, item in enumerate(self.items) if item % self.buckets == key % self.buckets]
        self.items.insert(shared[0] if shared else 0, key)


class Clock:
    """Events in order of time, then of scheduling."""

    def __init__(self):
        self.now, self.queue, self.seq = 0, [], 0

    def at(self, time, action):
        heapq.heappush(self.queue, (time, self.seq, action))
        self.seq += 1

    def run(self):
        while self.queue:
            self.now, _, action = heapq.heappop(self.queue)
            action()


class Wire:
    """A link: ``lanes`` servers and one queue."""

    def __init__(self, clock, rate, latency, lanes):
        self.clock, self.rate, self.latency = clock, rate, latency
        self.idle, self.queue = lanes, []
        self.busy = self.size_bytes = self.messages = 0

    def send(self, size, arrived, started=lambda: None):
        self.queue.append((size, arrived, started))
        if self.idle:
            self._start()

    def _start(self):
        size, arrived, started = self.queue.pop(0)
        self.idle -= 1
        started()
        delay = size / self.rate
        self.busy, self.size_bytes, self.messages = (
            self.busy + int(delay), self.size_bytes + size, self.messages + 1,
        )  # fmt: skip
        self.clock.at(self.clock.now + int(self.latency + delay), arrived)
        self.clock.at(self.clock.now + int(delay), self._free)

    def _free(self):
        self.idle += 1
        if self.queue:
            self._start()


class Wires:
    """The links of a network, and routes over them."""

    def __init__(self, network, clock):
        self.network = network
        self.wires = [
            Wire(clock, *values)
            for values in zip(
                network.bytes_per_cycle.tolist(),
                network.latency.tolist(),
                network.lanes.tolist(),
                strict=True,
            )
        ]
        self.link = {(s, d): i for i, (s, d) in enumerate(zip(network.src, network.dst, strict=True))}
        if network.kind == "ring":  # of two NPUs' parallel links the clockwise one is used
            for i in range(network.num_npus):
                self.link[i, (i + 1) % network.num_npus] = i

    def route(self, src, dst):
        n = self.network.num_npus
        if self.network.kind == "switch":
            return [src, n, dst]
        if self.network.kind != "ring":
            return [src, dst]
        clockwise = (dst - src) % n
        step = 1 if clockwise <= n - clockwise else -1
        route = [src]
        while route[-1] != dst:
            route.append((route[-1] + step) % n)
        return route

    def send(self, route, size, arrived):
        if len(route) == 1:
            arrived()
        else:
            wire = self.wires[self.link[route[0], route[1]]]
            wire.send(size, lambda: self.send(route[1:], size, arrived))


class TimersOfRank:
    """What a rank finishes in one cycle is one event."""

    def __init__(self, clock):
        self.clock, self.pending = clock, {}

    def start(self, cycles, action):
        time = self.clock.now + cycles
        if time in self.pending:
            self.pending[time].append(action)
            return
        self.pending[time] = [action]
        self.clock.at(time, lambda: self._ring(time))

    def _ring(self, time):
        for action in self.pending[time]:
            action()
        del self.pending[time]


class Graph:
    """Nodes of one rank of a trace, with their sets of free nodes."""

    def __init__(self, trace, rank, by_id):
        start, stop = int(trace.rank_ptr[rank]), int(trace.rank_ptr[rank + 1])
        ids = trace.node_id[start:stop].tolist()
        self.index = {node: start + i for i, node in enumerate(ids)}
        self.by_id, self.free, self.open = by_id, HashSet(), set()
        self.missing, self.children, entered = {}, defaultdict(HashSet), HashSet()
        for i, node in enumerate(ids, start):
            parents = HashSet()
            for d in trace.dep[trace.dep_ptr[i] : trace.dep_ptr[i + 1]]:
                parents.insert(ids[d])
            entered.insert(node)
            for parent in parents.items:
                entered.insert(parent)
                self.children[parent].insert(node)
            self.missing[node] = set(parents.items)
        for node in entered.items:
            if not self.missing[node]:
                self.free.insert(node)

    def issuable(self):
        return sorted(self.free.items) if self.by_id else list(self.free.items)

    def take(self, node):
        self.free.items.remove(node)
        self.open.add(node)

    def finish(self, node):
        self.open.remove(node)
        for child in self.children[node].items:
            self.missing[child].discard(node)
            if not self.missing[child]:
                self.free.insert(child)

    def done(self):
        return not self.open and not self.free.items


class TraceTwin:
    """ASTRA-sim, read line by line."""

    def __init__(self, workload, collectives, network, compute=None, order="astra-sim"):
        self.clock = Clock()
        self.wires = Wires(network, self.clock)
        self.collectives, self.compute, self.by_id = collectives, compute, order == "id"
        self.counts, self.messages = defaultdict(int), defaultdict(dict)
        n = network.num_npus
        self.timers = [TimersOfRank(self.clock) for _ in range(n)]
        self.finished, self.computed = np.full(n, -1), np.zeros(n, np.int64)
        self.ranks = [Rank(self, workload, rank) for rank in range(n)]
        for rank in self.ranks:
            rank.issue_free()
        self.clock.run()
        self.exposed = self.finished - self.computed

    def send(self, src, dst, tag, size, done):
        key = (tag, src, dst, size)
        message = self.messages[(*key, self.count("send", key))]

        def arrived():
            posted = message.get("posted")
            done()
            if posted:
                posted()
            else:
                message["arrived"] = True

        self.wires.send(self.wires.route(src, dst), size, arrived)

    def recv(self, src, dst, tag, size, done):
        key = (tag, src, dst, size)
        message = self.messages[(*key, self.count("recv", key))]
        if message.get("arrived"):
            self.clock.at(self.clock.now, done)
        else:
            message["posted"] = done

    def count(self, what, key):
        self.counts[what, key] += 1
        return self.counts[what, key]

    def issue(self, trace, i, rank, done, cycles=None):
        kind, peer, tag, amount = (
            int(trace.kind[i]), int(trace.peer[i]), int(trace.tag[i]) % 500_000_000, int(trace.amount[i]),
        )  # fmt: skip
        if kind == SEND:
            self.send(rank, peer, tag, amount, done)
        elif kind == RECV:
            self.recv(peer, rank, tag, amount, done)
        else:
            self.timers[rank].start((amount * 1000 or 1) if cycles is None else cycles, done)

    def roofline(self, trace, i):
        found = np.flatnonzero(trace.ops_node == i)
        if self.compute is None or not self.compute.roofline_enabled or not len(found):
            return int(trace.amount[i]) * 1000 or 1
        ops, size = float(trace.num_ops[found[0]]), float(trace.tensor_size[found[0]])
        rate = min(self.compute.local_mem_bw * 1e9 * (ops / size), self.compute.peak_perf * 1e12)
        return int(ops / rate * 1e9)


class Rank:
    """The workload layer of one rank."""

    def __init__(self, twin, trace, rank):
        self.twin, self.trace, self.rank = twin, trace, rank
        self.graph = Graph(trace, rank, True)
        self.busy = set()

    def issue_free(self, after_collective=False):
        deferred = []  # a collective that follows another starts when that has left its queue
        for node in self.graph.issuable():
            i = self.graph.index[node]
            kind = int(self.trace.kind[i])
            resource = {COMP: "comp", RECV: None}.get(kind, "comm")
            if resource in self.busy:
                continue
            self.graph.take(node)
            if resource:
                self.busy.add(resource)
            start = self.issue(node, i, kind, resource)
            if after_collective and kind == COLL:
                deferred.append(start)
            else:
                start()
        if self.graph.done() and self.twin.finished[self.rank] < 0:
            self.twin.finished[self.rank] = self.twin.clock.now
        for start in deferred:
            start()

    def issue(self, node, i, kind, resource):
        def done():
            self.busy.discard(resource)
            self.graph.finish(node)
            self.issue_free(kind == COLL)

        if kind == COLL:
            return lambda: Collective(self.twin, self.twin.collectives[node], self.rank, done)
        cycles = None
        if kind == COMP:
            cycles = self.twin.roofline(self.trace, i)
            self.twin.computed[self.rank] += cycles
        return lambda: self.twin.issue(self.trace, i, self.rank, done, cycles)


class Collective:
    """A custom collective at one rank."""

    def __init__(self, twin, trace, rank, done):
        self.twin, self.trace, self.rank, self.done = twin, trace, rank, done
        self.graph = Graph(trace, rank, twin.by_id)
        self.issue_free()

    def issue_free(self):
        for node in self.graph.issuable():
            self.graph.take(node)
            self.twin.issue(
                self.trace, self.graph.index[node], self.rank, lambda node=node: self.finish(node)
            )

    def finish(self, node):
        self.graph.finish(node)
        self.issue_free()
        if self.graph.done():
            self.done()


class BlockTwin:
    """A block on links without hubs, transfer by transfer."""

    def __init__(self, dispatch, combine, compute_ns, network, barrier, reduce_ns_per_byte):
        self.clock, self.phase = Clock(), barrier == "phase"
        self.wires = Wires(network, self.clock).wires
        self.d, self.c, self.rate, self.scale = dispatch, combine, reduce_ns_per_byte, network.time_scale
        n = network.num_npus
        self.timers = [TimersOfRank(self.clock) for _ in range(n)]
        self.compute = comp_cycles(duration_micros(np.asarray(compute_ns, float), self.scale))
        self.starts = {"dispatch": [], "combine": []}
        self.finished, self.dispatch_done, self.compute_done = (np.full(n, -1) for _ in range(3))
        self.awaited = [0] * n
        for i in range(dispatch.num_transfers):
            ends = (
                (dispatch.src[i], dispatch.dst[i])
                if self.phase
                else (dispatch.dst[i],) * int(dispatch.delivers[i])
            )
            for end in ends:
                self.awaited[end] += 1
        self.missing = defaultdict(int)  # inputs of a transfer of combine, or of a row ("row", t)
        self.total = defaultdict(int)
        tree = combine.tree()
        self.target = [p if p >= 0 else ("row", int(tree[i])) for i, p in enumerate(combine.parent)]
        for i in range(combine.num_transfers):
            self.total[self.target[i]] += 1
            self.total[i] += int(combine.delivers[i])
        for i in range(combine.num_transfers):
            self.missing[self.target[i]] += 1
            self.missing[i] += int(combine.delivers[i] and not self.phase)
        self.leaf = [self.missing[i] == 0 for i in range(combine.num_transfers)]
        self.late = defaultdict(list)
        self.run(n)

    def run(self, n):
        for rank in range(n):
            for i in np.flatnonzero((self.d.parent < 0) & (self.d.src == rank)):
                self.send_dispatch(int(i))
            if self.awaited[rank] == 0:
                if self.phase:
                    self.timers[rank].start(1, lambda rank=rank: self.start_compute(rank))
                else:
                    self.start_compute(rank)
        self.clock.run()

    def send_dispatch(self, i):
        self.wires[self.d.link[i]].send(
            self.d.size_bytes, lambda: self.dispatched(i), lambda: self.starts["dispatch"].append(i)
        )

    def dispatched(self, i):
        src, dst = int(self.d.src[i]), int(self.d.dst[i])
        self.finished[[src, dst]] = self.clock.now
        if self.phase:
            self.step(src)
        for child in np.flatnonzero(self.d.parent == i):
            self.send_dispatch(int(child))
        if self.phase or self.d.delivers[i]:
            self.step(dst)

    def step(self, rank):
        self.awaited[rank] -= 1
        if self.awaited[rank] == 0:
            self.start_compute(rank)

    def start_compute(self, rank):
        self.dispatch_done[rank] = self.clock.now
        self.timers[rank].start(int(self.compute[rank]), lambda: self.computed(rank))

    def computed(self, rank):
        self.compute_done[rank] = self.finished[rank] = self.clock.now
        mine = np.flatnonzero(self.c.src == rank)
        if self.phase and not len(mine) and not (self.c.dst == rank).any():
            self.finished[rank] += 1
        for i in sorted(mine.tolist(), key=lambda i: (*self.turn_of(rank, i), i)):
            if self.phase and self.leaf[i]:
                self.forward(rank, i)
            elif not self.phase and self.c.delivers[i]:
                self.input(rank, i)
        if self.late[rank]:
            self.clock.at(self.clock.now, lambda: [self.forward(rank, x) for x in self.late[rank]])

    def turn_of(self, rank, i):
        """Which of its source's rows a transfer belongs to, and how far the source is behind the rank."""
        tree = self.c.tree()
        source = {int(t): int(self.c.dst[j]) for j, t in enumerate(tree) if self.c.parent[j] < 0}
        mine = source[int(tree[i])]
        turn = sum(source[t] == mine for t in source if t < tree[i])
        return turn, (mine - rank - 1) % len(self.finished)

    def input(self, rank, target):
        self.missing[target] -= 1
        if self.missing[target]:
            return
        if self.phase and self.compute_done[rank] < 0:
            self.late[rank].append(target)
        else:
            self.forward(rank, target)

    def forward(self, rank, target):
        if self.total[target] >= 2:
            time = (self.total[target] - 1) * self.c.size_bytes * self.rate
            cycles = int(comp_cycles(duration_micros(time, self.scale)))
            self.timers[rank].start(cycles, lambda: self.summed(rank, target))
        else:
            self.send_combine(target)

    def summed(self, rank, target):
        self.finished[rank] = self.clock.now
        self.send_combine(target)

    def send_combine(self, target):
        if isinstance(target, tuple):
            return
        self.wires[self.c.link[target]].send(
            self.c.size_bytes, lambda: self.combined(target), lambda: self.starts["combine"].append(target)
        )

    def combined(self, i):
        self.finished[[self.c.src[i], self.c.dst[i]]] = self.clock.now
        self.input(int(self.c.dst[i]), self.target[i])


def trace_of(ranks):
    """A trace of lists of ``(id, kind, peer, tag, amount, dep ids)``; ``(ops, size)`` may follow."""
    columns, dep_ptr, dep, ops = [], [0], [], []
    for nodes in ranks:
        position = {node[0]: i for i, node in enumerate(nodes)}
        for node in nodes:
            if len(node) > 6:
                ops.append((len(columns), *node[6]))
            columns.append(node[:5])
            dep += [position[d] for d in node[5]]
            dep_ptr.append(len(dep))
    ids, kind, peer, tag, amount = (list(c) for c in zip(*columns, strict=True))
    rank_ptr = np.cumsum([0] + [len(nodes) for nodes in ranks])
    ops_node, num_ops, tensor_size = np.array(ops, np.int64).reshape(-1, 3).T
    return Trace(
        rank_ptr.astype(np.int64), np.array(ids, np.int64), np.array(kind, np.int8), np.array(peer, np.int32),
        np.array(tag, np.int32), np.array(amount, np.int64), np.array(dep_ptr, np.int64),
        np.array(dep, np.int32), ops_node.copy(), num_ops.copy(), tensor_size.copy(),
    )  # fmt: skip
