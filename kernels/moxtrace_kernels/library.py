"""The compiled library, loaded with ctypes: ``binding/mox_c.h`` in Python, its statuses as exceptions.

Python's and torch's binary interfaces play no part, so one build serves every version of both.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, c_char, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .errors import Failure, LibraryError, ShapeError
from .shape import Shape

__all__ = [
    "LIBRARY",
    "DispatchIn",
    "DispatchOut",
    "Library",
    "Options",
    "Sizes",
    "load",
    "preload_nvshmem",
    "shape_of",
]

LIBRARY = Path(__file__).with_name("libmoxtrace_kernels.so")
NVSHMEM_HOST = "libnvshmem_host.so.3"
ABI = 1  # MOX_C_ABI
_NO_TOKEN = 0xFFFFFFFF
_DTYPES = {"bf16": 0, "fp16": 1, "fp32": 2, "fp8": 3}
_TEXT_BYTES = 4096
_ID_ROOM = 1024


def _fields(type_: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, type_) for name in names.split()]


class _Shape(ctypes.Structure):
    _fields_ = _fields(
        c_uint32,
        "ranks experts top_k max_tokens hidden dispatch expert_out combine wire_fp32 dp row_capacity "
        "row_align "
        "self_put",
    )


class Options(ctypes.Structure):
    """``mox_options``: deadline of a wait, blocks (0: one per multiprocessor), threads of a block."""

    _fields_ = _fields(c_uint32, "timeout_ms blocks threads")


class DispatchIn(ctypes.Structure):
    """``mox_dispatch_in``: device addresses, whether ``experts`` are int64, and the number of tokens."""

    _fields_ = _fields(c_void_p, "x scales experts weights bound_m") + _fields(
        c_uint32, "experts_are_int64 tokens"
    )


class DispatchOut(ctypes.Structure):
    """``mox_dispatch_out``: device addresses."""

    _fields_ = _fields(c_void_p, "rows scales counts starts row_source")


class Sizes(ctypes.Structure):
    """``mox_sizes``: bytes of the whole, a packet, a partial sum, a manifest, a result; rows; slots."""

    _fields_ = _fields(c_uint64, "symmetric packet partial manifest result") + _fields(
        c_uint32, "capacity slots"
    )


class _Failure(ctypes.Structure):
    _fields_ = [
        ("phase", c_char * 32),
        ("message", c_char * 480),
        *_fields(c_uint64, "epoch wanted found"),
        *_fields(c_uint32, "rank peer token is_wait"),
    ]


class _Text(ctypes.Structure):
    _fields_ = [("text", c_void_p), ("size", c_size_t)]


_SIGNATURES: dict[str, tuple[Any, Sequence[Any]]] = {
    "mox_build": (c_char_p, ()),
    "mox_check": (c_int, (POINTER(_Shape), _Text)),
    "mox_get_sizes": (c_int, (POINTER(_Shape), POINTER(Sizes), _Text)),
    "mox_describe": (c_int, (POINTER(_Shape), _Text, _Text)),
    "mox_unique_id": (c_int, (c_void_p, c_size_t, POINTER(c_size_t), _Text)),
    "mox_initialize": (c_int, (c_void_p, c_size_t, c_int, c_int, _Text)),
    "mox_finalize": (c_int, (_Text,)),
    "mox_create": (c_void_p, (POINTER(_Shape), POINTER(Options), _Text)),
    "mox_destroy": (None, (c_void_p,)),
    "mox_dispatch_send": (c_int, (c_void_p, POINTER(DispatchIn), c_void_p, _Text)),
    "mox_dispatch_recv": (c_int, (c_void_p, POINTER(DispatchOut), c_void_p, _Text)),
    "mox_combine_send": (c_int, (c_void_p, c_void_p, c_void_p, _Text)),
    "mox_combine_recv": (c_int, (c_void_p, c_void_p, c_void_p, _Text)),
    "mox_get_failure": (c_int, (c_void_p, POINTER(_Failure))),
}


class Library:
    """The functions of ``mox_c.h``.

    Parameters
    ----------
    path : Path
        The shared object.

    Raises
    ------
    LibraryError
        It is absent, does not load, or has another interface than this package.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise LibraryError(
                f"{path} is absent: this is an install without the GPU library. Install it where nvcc is: "
                "pip install ./kernels, without MOXTRACE_CUDA=0; or use ReferenceAllToAll"
            )
        preload_nvshmem()
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            raise LibraryError(
                f"{path} does not load: {error}; expected NVSHMEM's host library beside it: pip install "
                "nvidia-nvshmem-cu13~=3.4.5"
            ) from error
        found = self._library.mox_c_abi()
        if found != ABI:
            raise LibraryError(
                f"{path} has interface {found}; expected {ABI}: it was built from other sources, install "
                "./kernels again"
            )
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self._library, name)
            function.restype, function.argtypes = result, arguments

    @property
    def build(self) -> dict[str, str]:
        """What it was compiled with: ``nvshmem`` and ``cuda`` versions, ``architectures``."""
        parts = self._library.mox_build().decode().split("; ")
        return dict(part.split(" ", 1) for part in parts)

    # ---- shapes
    def check(self, shape: Shape) -> None:
        """Refuse a shape that the kernels refuse.

        Parameters
        ----------
        shape : Shape
            What the ranks agreed on.

        Raises
        ------
        ShapeError
            With the kernels' reason.
        """
        text = _buffer()
        if self._library.mox_check(shape_of(shape), _Text(ctypes.addressof(text), _TEXT_BYTES)):
            raise ShapeError(text.value.decode())

    def sizes(self, shape: Shape) -> Sizes:
        """Bytes that a shape needs and sends.

        Parameters
        ----------
        shape : Shape
            What the ranks agreed on.

        Returns
        -------
        Sizes
            Filled in by the kernels' own layout.
        """
        sizes = Sizes()
        self.call("mox_get_sizes", shape_of(shape), sizes)
        return sizes

    def describe(self, shape: Shape) -> str:
        """Every buffer of the symmetric memory with its bytes, one line each.

        Parameters
        ----------
        shape : Shape
            What the ranks agreed on.

        Returns
        -------
        str
            Lines of text.
        """
        text = _buffer()
        self.call("mox_describe", shape_of(shape), _Text(ctypes.addressof(text), _TEXT_BYTES))
        return text.value.decode()

    # ---- NVSHMEM
    def unique_id(self) -> bytes:
        """A new id, for one rank to make and every rank to initialize with."""
        room, size = ctypes.create_string_buffer(_ID_ROOM), c_size_t()
        self.call("mox_unique_id", room, _ID_ROOM, ctypes.byref(size))
        return room.raw[: size.value]

    # ---- objects
    def create(self, shape: Shape, options: Options) -> int:
        """A new object of the kernels; collective.

        Parameters
        ----------
        shape : Shape
            What the ranks agreed on.
        options : Options
            Deadline, blocks, threads.

        Returns
        -------
        int
            Its handle, for ``call``, ``failure`` and ``destroy``.

        Raises
        ------
        LibraryError
            With the kernels' reason, for example too little symmetric memory.
        """
        text = _buffer()
        handle = self._library.mox_create(
            shape_of(shape), options, _Text(ctypes.addressof(text), _TEXT_BYTES)
        )
        if not handle:
            raise LibraryError(text.value.decode())
        return int(handle)

    def destroy(self, handle: int) -> None:
        """Give an object's memory back; collective.

        Parameters
        ----------
        handle : int
            From ``create``.
        """
        self._library.mox_destroy(handle)

    def failure(self, handle: int) -> Failure | None:
        """What a kernel of an object left behind, without synchronising.

        Parameters
        ----------
        handle : int
            From ``create``.

        Returns
        -------
        Failure or None
            The first failure; None while there is none.
        """
        found = _Failure()
        if not self._library.mox_get_failure(handle, found):
            return None
        token = None if found.token == _NO_TOKEN else found.token
        return Failure(
            phase=found.phase.decode(),
            rank=found.rank,
            peer=found.peer,
            token=token,
            epoch=found.epoch,
            wanted=found.wanted,
            found=found.found,
            is_wait=bool(found.is_wait),
            message=found.message.decode(),
        )

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function that reports errors.

        Parameters
        ----------
        name : str
            Of the function.
        *arguments
            Before the error's text.

        Raises
        ------
        LibraryError
            With the text.
        """
        text = _buffer()
        if getattr(self._library, name)(*arguments, _Text(ctypes.addressof(text), _TEXT_BYTES)):
            raise LibraryError(text.value.decode())


def preload_nvshmem() -> ctypes.CDLL | None:
    """Load NVSHMEM's host library from its wheel, so that ours finds it wherever either of them is installed.

    Returns
    -------
    CDLL or None
        None without the wheel: the loader then looks where the library was linked.
    """
    try:
        spec = find_spec("nvidia.nvshmem")
    except ModuleNotFoundError:
        return None
    for folder in (spec.submodule_search_locations or []) if spec else []:
        found = Path(folder, "lib", NVSHMEM_HOST)
        if found.is_file():
            return ctypes.CDLL(str(found))
    return None


def _buffer() -> ctypes.Array[c_char]:
    return ctypes.create_string_buffer(_TEXT_BYTES)


def shape_of(shape: Shape) -> ctypes.Structure:
    """A shape as ``mox_shape``.

    Parameters
    ----------
    shape : Shape
        What the ranks agreed on.

    Returns
    -------
    Structure
        For a call of the library.
    """
    values = {name: getattr(shape, name) for name, _ in _Shape._fields_}
    return _Shape(**values | {name: _DTYPES[values[name]] for name in ("dispatch", "expert_out", "combine")})


@cache
def load() -> Library:
    """The installed library, loaded once.

    Returns
    -------
    Library
        Its functions.

    Raises
    ------
    LibraryError
        It is absent, does not load, or has another interface.
    """
    return Library(LIBRARY)
