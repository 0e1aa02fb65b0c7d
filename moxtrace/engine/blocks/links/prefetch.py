"""A hint to the processor: a row of an array will be read soon.

The event loop goes through hundreds of millions of records in no order, and knows long before which ones it
will need; without the hint it would wait for the memory most of its time.  A hint changes no result.
"""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic

__all__ = ["prefetch"]


def _nothing(array: Any, row: int) -> None:
    """Without the compiler there is nothing to hint at."""


@intrinsic
def _prefetch(typing_context, array, row):  # type: ignore[no-untyped-def]
    """Fetch the first entry of ``array[row]``, an array of two dimensions, into the caches."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        kind = signature.args[0]
        made = context.make_array(kind)(context, builder, arguments[0])
        at = [arguments[1], context.get_constant(types.intp, 0)]
        address = cgutils.get_item_pointer(context, builder, kind, made, at, wraparound=False)
        address = builder.bitcast(address, cgutils.voidptr_t)
        number = ir.IntType(32)
        hint = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, hint, "llvm.prefetch.p0")
        builder.call(function, [address, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


prefetch: Any = _nothing if numba.config.DISABLE_JIT else _prefetch  # type: ignore[attr-defined]
