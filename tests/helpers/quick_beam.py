"""Beam without work that it repeats in each pipeline, half of the time of a small conversion."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from typing import Any

from apache_beam.runners.worker import statecache
from apache_beam.transforms import core, userstate

_Signature = tuple[list[str], list[Any]]
_Specs = tuple[set[Any], set[Any]]


def quicken_beam() -> None:
    """Remember signatures and state of DoFns, and measure cached side inputs without a walk through all modules.

    No result changes: a DoFn's class and function decide these, and side inputs of conversions hold no module's variables.
    """
    core.get_function_args_defaults = _remember_signatures(core.get_function_args_defaults)
    userstate.get_dofn_specs = _remember_specs(userstate.get_dofn_specs)
    statecache.objsize.traverse._iter_modules_globals = tuple


def _remember_signatures(read_signature: Callable[[Any], _Signature]) -> Callable[[Any], _Signature]:
    """Return a function of the same results that reads the signature of each method once."""
    signatures: weakref.WeakKeyDictionary[types.FunctionType, _Signature] = weakref.WeakKeyDictionary()

    def remember(function: Any) -> _Signature:
        if not isinstance(function, types.MethodType) or not isinstance(function.__func__, types.FunctionType):
            return read_signature(function)
        if function.__func__ not in signatures:
            signatures[function.__func__] = read_signature(function)
        names, defaults = signatures[function.__func__]
        return list(names), list(defaults)

    return remember


def _remember_specs(read_specs: Callable[[Any], _Specs]) -> Callable[[Any], _Specs]:
    """Return a function of the same results that looks once through each class of DoFns for state and timers."""
    specs: weakref.WeakKeyDictionary[type, _Specs] = weakref.WeakKeyDictionary()

    def remember(dofn: Any) -> _Specs:
        if isinstance(dofn, core.CallableWrapperDoFn):
            # State and timers are defaults of the function.
            function = dofn._process_argspec_fn()
            function = getattr(function, "__func__", function)
            if not isinstance(function, types.FunctionType) or function.__defaults__:
                return read_specs(dofn)
        if type(dofn) not in specs:
            specs[type(dofn)] = read_specs(dofn)
        states, timers = specs[type(dofn)]
        return set(states), set(timers)

    return remember
