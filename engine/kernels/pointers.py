"""Compiled functions as values: their addresses, and calls of them from other compiled code.

A loop that calls by address is compiled once. Otherwise numba would compile the loop anew for each
function that it calls.
"""

from typing import Any

from numba import types

from lockstep.engine.kernels.lanes import compiled_as


def address_of(kernel: Any, *kinds: Any) -> int:
    """Return the address of the kernel compiled for these types; it lasts as long as the kernel."""
    kernel.compile(kinds)
    made = kernel.overloads[kinds]
    found: int = made.library.get_pointer_to_function(made.fndesc.llvm_func_name)
    return found


def call_of(result: Any) -> Any:
    """Return a function (address, arguments) that calls a kernel; arguments: a tuple.

    The kernel must not raise, because its exceptions would be lost.
    """

    def call(typing: Any, function: Any, arguments: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kinds, convention = arguments.types, context.call_conv
            given = [builder.extract_value(args[1], i) for i in range(len(arguments))]
            kind = convention.get_function_type(result, kinds)
            pointer = builder.inttoptr(args[0], kind.as_pointer())
            return convention.call_function(builder, pointer, result, kinds, given)[1]

        return result(types.int64, arguments), codegen

    return compiled_as(call)


call = call_of(types.none)
