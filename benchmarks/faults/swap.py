"""A fault in modules that are already imported: the code of the functions is exchanged in place.

So that a process that has collected all tests can be forked for every fault, instead of importing
torch, vitft and the tests again.
"""

import gc
import re
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field

ADDRESS = re.compile(r"0x[0-9a-f]+")


class NotSwappable(Exception):
    """The fault has to be imported in a new process."""


@dataclass(slots=True)
class Live:
    """The functions of the modules of this process."""

    functions: dict[str, list[types.FunctionType]] = field(default_factory=dict)
    """By the name of the module."""

    @classmethod
    def find(cls) -> "Live":
        """Find them among all objects, closures and wrapped functions included."""
        live = cls()
        gc.unfreeze()
        for thing in gc.get_objects():
            if type(thing) is types.FunctionType and thing.__module__:
                live.functions.setdefault(thing.__module__, []).append(thing)
        gc.freeze()
        return live

    def swap(self, module: str, source: bytes, mutated: bytes, *, inside: bool) -> None:
        """Replace a module's source in this process.

        Args:
            module: Name of the imported module.
            source: Its source.
            mutated: The source with a fault.
            inside: The fault is in the body of a function, not in what runs during the import.

        Raises:
            NotSwappable: The import has to be run again.
        """
        path = sys.modules[module].__file__ or module
        before = codes(compile(source, path, "exec"))
        after = codes(compile(mutated, path, "exec"))
        places = {identity(code): place for place, code in before.items()}
        for function in self.functions.get(module, ()):
            place = places.get(identity(function.__code__))
            if place in after and before[place] != after[place]:
                try:
                    function.__code__ = after[place]
                except ValueError as error:  # another number of free variables
                    raise NotSwappable(str(error)) from error
        if not inside:
            swap_values(module, source, mutated)


def identity(code: types.CodeType) -> tuple[str, int, bytes]:
    """Return what tells the functions of a module apart."""
    return code.co_qualname, code.co_firstlineno, code.co_code


def codes(code: types.CodeType) -> dict[tuple[str, int], types.CodeType]:
    """Return the code of all functions of a module by name and number among those of this name."""
    found: dict[tuple[str, int], types.CodeType] = {}
    for inner in walk(code):
        number = 0
        while (inner.co_qualname, number) in found:
            number += 1
        found[inner.co_qualname, number] = inner
    return found


def walk(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield the code objects inside another one."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from walk(constant)


def swap_values(module: str, source: bytes, mutated: bytes) -> None:
    """Replace the constants, default arguments and class attributes that a fault changes."""
    live = sys.modules[module]
    before, after = executed(live, source), executed(live, mutated)
    changed = False
    for name, new in after.items():
        old = before.get(name)
        if name.startswith("__") or shown(old) == shown(new):
            continue
        current = vars(live).get(name)
        if isinstance(current, types.FunctionType) and isinstance(new, types.FunctionType):
            current.__defaults__, current.__kwdefaults__ = new.__defaults__, new.__kwdefaults__
        elif isinstance(current, type) and isinstance(new, type):
            swap_class(current, before[name], new)
        elif type(new).__module__ == module:
            raise NotSwappable(name)
        else:
            replace_everywhere(name, current, new)
        changed = True
    if not changed:
        raise NotSwappable("no difference found")


def executed(live: types.ModuleType, source: bytes) -> dict[str, object]:
    """Run the source of a module again and return its names."""
    fresh = types.ModuleType(live.__name__)
    fresh.__file__, fresh.__package__ = live.__file__, live.__package__
    try:
        exec(compile(source, live.__file__ or "", "exec"), vars(fresh))
    except Exception as error:
        raise NotSwappable(repr(error)) from error
    return vars(fresh)


def swap_class(current: type, old: type, new: type) -> None:
    """Give a class the attributes and defaults in which two of its versions differ."""
    for name, value in vars(new).items():
        if shown(vars(old).get(name)) == shown(value) or name in ("__doc__", "__dict__"):
            continue
        kept = vars(current).get(name)
        if isinstance(kept, types.FunctionType) and isinstance(value, types.FunctionType):
            kept.__defaults__, kept.__kwdefaults__ = value.__defaults__, value.__kwdefaults__
        elif name == "__dataclass_fields__" or isinstance(value, types.MemberDescriptorType):
            continue
        elif isinstance(value, (int, float, str, tuple, frozenset, dict, list, bool, set)):
            setattr(current, name, value)
        else:
            raise NotSwappable(name)
    if shown_fields(old) != shown_fields(new):
        raise NotSwappable("fields of a dataclass")


def shown_fields(cls: type) -> str:
    """Return the fields of a dataclass as text, without their defaults (those are in __init__)."""
    return repr(
        [(name, f.kw_only, f.init) for name, f in getattr(cls, "__dataclass_fields__", {}).items()]
    )


def shown(value: object) -> str:
    """Return a value as text that is the same for equal values of two executions."""
    if isinstance(value, types.FunctionType):
        return f"{shown(value.__defaults__)} {shown(value.__kwdefaults__)}"
    if isinstance(value, (staticmethod, classmethod)):
        return shown(value.__func__)
    if isinstance(value, type):
        return str(
            {n: shown(v) for n, v in vars(value).items() if n not in ("__dict__", "__weakref__")}
        )
    return ADDRESS.sub("", repr(value))


def replace_everywhere(name: str, old: object, new: object) -> None:
    """Bind a name to another value in every module that has it from the same object."""
    for module in list(sys.modules.values()):
        if module.__name__.split(".")[0] in ("vitft", "tests") and vars(module).get(name) is old:
            setattr(module, name, new)
