"""Which runs a figure of one network shows: one setting of the swept keys, a run per policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moxtrace.plots.results import Results, Row, is_seed, shown
from moxtrace.plots.style import label_of

__all__ = ["LOAD", "Setting", "setting_of", "words"]

LOAD = "max_link_load"


@dataclass(frozen=True)
class Setting:
    """Runs that differ in policy, seeds and repeats only.

    Parameters
    ----------
    name : str
        The values of the keys that vary between settings, in words.
    rows : dict of str to list of Row
        By policy, the ideal switch left out where there are others.
    seeds : str
        The seeds of the runs in ``first``, in words.
    first : dict of str to Row
        One run of each policy, of the same seeds where there is one.
    """

    name: str
    rows: dict[str, list[Row]]
    seeds: str
    first: dict[str, Row]

    @property
    def title(self) -> str:
        """The setting and the seeds in a line."""
        return ", ".join(part for part in (self.name, self.seeds) if part)


def words(keys: Sequence[str], row: Row) -> str:
    """What a run's keys say, in a line."""
    said = ((label_of(key), shown(row.values.get(key))) for key in keys)
    return ", ".join(f"{value} NPUs" if word == "NPUs" else f"{word} {value}" for word, value in said)


def setting_of(results: Results) -> Setting:
    """The setting with the most policies; the first of these in the table.

    Parameters
    ----------
    results : Results
        Narrow it with ``where_is`` for another setting.

    Raises
    ------
    ConfigError
        When no run has link loads.
    """
    rows, _ = results.numbers(LOAD)
    if any(row.policy != "switch" for row in rows):
        rows = [row for row in rows if row.policy != "switch"]
    found: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row.values.get(key) for key in results.settings), []).append(row)
    chosen = max(found.values(), key=lambda rows: len({row.policy for row in rows}))
    by_policy: dict[str, list[Row]] = {}
    for row in chosen:
        by_policy.setdefault(row.policy, []).append(row)
    seeds = [key for key in results.varying if is_seed(key)]
    first = chosen[0]
    name = words(results.settings, first)
    if not any(key.endswith("npus") for key in results.settings):
        npus, kind = first.values.get("npus"), first.values.get("topology")
        name = ", ".join(filter(None, (f"{npus} NPUs" if npus else "", shown(kind) if kind else "", name)))
    draws = [first.values.get(key) for key in seeds]
    one = {
        policy: next((r for r in rows if [r.values.get(key) for key in seeds] == draws), rows[0])
        for policy, rows in by_policy.items()
    }
    return Setting(name, by_policy, words(seeds, first), one)
