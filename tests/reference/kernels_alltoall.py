"""Dispatch and combine in plain Python, one token at a time: the twin of moxtrace_kernels.reference.

Rows are opaque objects on the way out; on the way back they are lists of Python floats, and sums are fp64.
"""

from dataclasses import dataclass


@dataclass
class Held:
    """What one rank hands in: per token its row, its experts and their weights."""

    rows: list
    experts: list
    weights: list


def host(expert, experts, ranks):
    """Deal experts out rank by rank; the first ranks get one more where it does not come out even."""
    dealt = []
    for rank in range(ranks):
        dealt += [rank] * (experts // ranks + (1 if rank < experts % ranks else 0))
    return dealt[expert]


def dispatch(held, experts, dp):
    """Rows of every expert: ``[(source rank, token, row)]`` in this order."""
    received = [[] for _ in range(experts)]
    for rank, mine in enumerate(held):
        for token, row in enumerate(mine.rows):
            if token % dp != rank % dp:
                continue
            for expert in sorted({e for e in mine.experts[token] if e >= 0}):
                received[expert].append((rank, token, row))
    return received


def combine(held, received, answers, dp):
    """Sums by rank and token, and the sums of magnitudes that rounding errors are measured by.

    ``answers[expert][i]`` is the list of floats that an expert made of its i-th row.
    """
    answer_of = {}
    for expert, rows in enumerate(received):
        for (rank, token, _), answer in zip(rows, answers[expert], strict=True):
            answer_of[expert, rank, token] = answer
    sums, magnitudes = [], []
    for rank, mine in enumerate(held):
        sums.append([])
        magnitudes.append([])
        for token in range(len(mine.rows)):
            sender = rank - rank % dp + token % dp
            terms = [
                [weight * v for v in answer_of[expert, sender, token]]
                for expert, weight in zip(mine.experts[token], mine.weights[token], strict=True)
                if expert >= 0
            ]
            sums[-1].append([sum(column) for column in zip(*terms, strict=True)])
            magnitudes[-1].append([sum(map(abs, column)) for column in zip(*terms, strict=True)])
    return sums, magnitudes


def starts(counts, capacity, align):
    """First row of each expert: every ``capacity`` rows, or packed at multiples of ``align``."""
    if not align:
        return [e * capacity for e in range(len(counts))]
    found, row = [], 0
    for count in counts:
        found.append(row)
        row += count
        while row % align:
            row += 1
    return found
