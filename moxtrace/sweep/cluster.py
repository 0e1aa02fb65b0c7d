"""Runs on a Dask cluster: a scheduler somewhere, and workers that can import moxtrace.

Goes in: the address of a scheduler.  Comes out: a :class:`~moxtrace.sweep.places.Place`.  A worker that dies
has its runs done by another; a run that takes several workers with it becomes a failed row.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moxtrace.errors import ConfigError, ExternalToolError
from moxtrace.sweep.code import code_version

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["Dask"]

_ADDRESS = re.compile(r"((tcp|tls|ucx|ws|wss)://)?[^\s/:]+:\d{1,5}|((tcp|tls)://)\[[0-9a-fA-F:]+\]:\d{1,5}")


class Dask:
    """A Dask cluster.

    Parameters
    ----------
    address : str
        Of the scheduler, such as ``tcp://login1:8786``, or a scheduler file ``FILE.json``.
    timeout_s : float
        How long to wait for the scheduler, and again for the first worker.

    Raises
    ------
    ExternalToolError
        When Dask is not installed.
    ConfigError
        When the address is none, the scheduler file cannot be read, or the time is no time.
    """

    at_once = 1000  # handed to the scheduler, which spreads them; workers may still be joining
    memory_bytes = math.inf  # Dask's workers know their own limits

    def __init__(self, address: str, timeout_s: float = 30.0) -> None:
        if not (math.isfinite(timeout_s) and timeout_s > 0):
            raise ConfigError(f"--dask-timeout: {timeout_s:g} s; expected a time above 0")
        try:
            import distributed  # noqa: F401
        except ModuleNotFoundError:
            raise ExternalToolError("--dask: Dask is not installed: pip install 'moxtrace[dask]'") from None
        self._address, self._timeout_s = address, timeout_s
        self._scheduler = _scheduler_of(address)
        self._client: Client | None = None

    def threads(self, size_bytes: float, runs: int) -> int:
        """One: a worker's other cores are for other runs."""
        return 1

    @contextmanager
    def executor(self) -> Iterator[Executor]:
        """Dask's own executor, for the time of the sweep; what is not done at its end is called off."""
        client = self._connected()
        executor = None
        try:
            self._check_workers(client)
            executor = client.get_executor(pure=False)
            self._client = client
            yield executor
        finally:
            self._client = None
            if executor is not None:
                executor.shutdown(wait=False)
            client.close(timeout=5)

    def why(self, error: BaseException) -> str:
        """Why a run did not come back.

        Raises
        ------
        ExternalToolError
            When the scheduler is gone.
        """
        from distributed.scheduler import KilledWorker

        if isinstance(error, KilledWorker):
            return "every Dask worker that tried it died, most likely out of memory: use fewer tokens or NPUs"
        self.check()
        return f"Dask: {type(error).__name__}: {' '.join(str(error).split())}"

    def check(self) -> None:
        """Whether the scheduler is still there: what was handed to one that is gone never comes back.

        Raises
        ------
        ExternalToolError
            When it is not.
        """
        if self._client is None or self._client.status != "running":
            raise ExternalToolError(
                f"--dask {self._address}: the scheduler went away; finished rows are kept: start "
                "the sweep again"
            )

    def _connected(self) -> Client:
        from distributed import Client

        try:
            asyncio.run(self._answers())
            return Client(self._scheduler, timeout=self._timeout_s, set_as_default=False)
        except (OSError, TimeoutError):
            raise ExternalToolError(
                f"--dask {self._address}: no scheduler answered within {self._timeout_s:g} s; start one with "
                "'dask scheduler', check the address, or wait longer with --dask-timeout"
            ) from None

    async def _answers(self) -> None:
        """Shake hands with the scheduler: a client alone waits for ever where somebody listens in silence."""
        from distributed.comm.core import connect
        from distributed.security import Security

        options = Security().get_connection_args("client")
        comm = await asyncio.wait_for(
            connect(self._scheduler, timeout=self._timeout_s, **options), self._timeout_s
        )
        comm.abort()

    def _check_workers(self, client: Client) -> None:
        """Wait for the first worker, and refuse workers that would compute something else."""
        try:
            client.wait_for_workers(1, timeout=self._timeout_s)
        except TimeoutError:
            raise ExternalToolError(
                f"--dask {self._address}: the scheduler has no workers after {self._timeout_s:g} s; "
                "start some with 'dask worker'"
            ) from None
        found: dict[str, Any] = client.run(_version, on_error="return")
        for worker, version in sorted(found.items()):
            if version != code_version():
                has = f"moxtrace {version}" if isinstance(version, str) else f"no moxtrace ({version})"
                raise ExternalToolError(
                    f"--dask {self._address}: worker {worker} has {has}; install {code_version()} there"
                )


def _scheduler_of(address: str) -> str:
    """The address, or the one in a scheduler file."""
    if address.endswith(".json"):
        try:
            address = json.loads(Path(address).read_text(encoding="utf-8"))["address"]
        except OSError as error:
            raise ConfigError(f"--dask {address}: cannot read the scheduler file: {error.strerror}") from None
        except (ValueError, KeyError, TypeError):
            raise ConfigError(f"--dask {address}: is no scheduler file of Dask") from None
    if not isinstance(address, str) or not _ADDRESS.fullmatch(address):
        raise ConfigError(f"--dask {address}: is no address; expected one such as tcp://host:8786")
    return address


def _version() -> str:
    """Version of moxtrace on a worker, and of its code."""
    return code_version()
