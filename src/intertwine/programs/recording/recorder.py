"""Recorder of one real run of a model, operation by operation."""

import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

from ..._evaluation import OperationMode
from ..._nested import map_leaves, tensors_in
from ..calls import Call, Ref, Value
from ..operations import BATCH_NORMS
from ..program import results
from .decompositions import decomposition
from .memory import UNWRITTEN, Geometry, MetaConstants, covers, geometry, overlap, storage_key
from .source import user_line

_READERS = {"tolist", "numpy", "__array__", "data_ptr", "__dlpack__", "__cuda_array_interface__"}
_READERS |= {"__deepcopy__", "__reduce_ex__"}
_PRINTERS = {"__repr__", "__format__"}
_BUILDERS = {"tensor", "as_tensor", "asarray", "new_tensor", "new"}  # these read a list of tensors number by number

# results that depend on one argument only: the sizes of packed sequences do not depend on what is packed
_ASIDE = {"aten::_pack_padded_sequence": (1, "lengths"), "aten::_pad_packed_sequence": (1, "batch_sizes")}
_ENDS = (None, 2**63 - 1)  # ends of a slice that runs to the last row
_TRACED = {"aten::_ctc_loss"}  # results as long as numbers say, except those that only gradients read
_MASKED = {"aten::index": "indices", "aten::masked_select": "mask"}  # the result is as long as a mask says


class Recorder(OperationMode):
    """Recorder of the operations on tensors that depend on a parameter or a user input.

    Constants are followed by value: an operation on constants alone is not recorded. A write in place makes a new
    value. Another view of overwritten memory that is read later is made from the writes: ``intertwine::part_of_write``
    shows a part of one, ``intertwine::written_into`` puts one into what was there, and where both overlap only in part,
    ``intertwine::overwritten`` is a result without a rule.
    """

    def __init__(self, answers: Sequence[bool] = ()) -> None:
        super().__init__()
        self.answers: list[bool] | None = []  # to yes-or-no questions; none if other numbers were read
        self.printed = False  # whether numbers were turned into text, for an error message or for the code
        self._given_answers = tuple(answers)  # to the first questions, instead of the true answers
        self.values: list[Value] = []
        self.calls: list[Call] = []
        self.reads: list[str] = []
        self.module = ""
        self.dtypes: set[torch.dtype] = set()
        self._within = False  # whether within a decomposition
        self._meta = MetaConstants()
        # Tensors of the run die when the model releases them. An entry goes with its tensor, before its id is reused;
        # the number of a storage is not used again while a weak reference to it is held.
        # id(tensor) -> it, its storage, value, writes to the storage then
        self._known: dict[int, tuple[weakref.ref[Tensor], int, Ref, int]] = {}
        self._storages: dict[int, StorageWeakRef] = {}
        self._given: dict[int, tuple[Tensor, Tensor]] = {}  # storage of a given tensor -> it, and its memory
        self._before: dict[int, Tensor] = {}  # storage of a given tensor -> contents before it was first overwritten
        self._writes: dict[int, list[tuple[Geometry, Ref]]] = {}  # storage -> writes in place, in order
        self._constants: dict[int, tuple[weakref.ref[Tensor], int, Ref]] = {}
        self._views: dict[int, dict[Geometry, tuple[Ref, int]]] = {}  # storage -> views known to lie there
        self._under: dict[int, Tensor] = {}  # storage of a constant -> contents before anything that varies

    def declare(self, tensor: Tensor, kind: Any, name: str) -> Ref:
        """Register a parameter, buffer or input before the run."""
        self._given[storage_key(tensor)] = tensor, tensor.data
        data = tensor.detach() if kind == "constant" and not tensor.is_meta else None
        return self._new(tensor, _value(tensor, kind, name, data))

    def guard(self, tensor: Tensor) -> None:
        """Have a constant of the model restored if the run overwrites it."""
        if tensor.layout == torch.strided and not tensor.is_meta:
            self._given.setdefault(storage_key(tensor), (tensor, tensor.data))

    def computed(self, tensor: Tensor) -> bool:
        """Whether a tensor was computed from parameters or inputs by recorded operations."""
        if tensor.layout != torch.strided:
            return False
        value = self.ref(tensor)
        return value is not None and self._varies(value)

    def ref(self, tensor: Tensor) -> Ref | None:
        """The value that a tensor holds now; ``None`` for a constant."""
        entry = self._known.get(id(tensor))
        place, key = geometry(tensor), storage_key(tensor)
        if entry is None or entry[1] != key:  # unknown, or its memory was exchanged by assigning to ``.data``
            seen = self._views.get(key, {}).get(place)
            if seen is None and key in self._under:
                seen = self._underlying(tensor, self._under[key]), 0
            if seen is None:
                if key not in self._views:
                    return None
                # memory of a known tensor seen through a view that no recorded operation made
                sources = [r for r, _ in self._views[key].values()]
                value = self._derived("intertwine::overwritten", place, {"self": sources})
                self._remember(tensor, value)
                return value
            value, version = seen
        else:
            _, _, value, version = entry
        after = self._after(key, place, value, version)
        if after != value:
            self._remember(tensor, after)
        return after

    def read(self, tensor: Tensor, question: bool = False) -> None:
        """Record a host read (``.item()``): from then on its sources are fixed."""
        value = self.ref(tensor)
        if value is not None and self._varies(value):
            self.answers = self.answers if question else None
            line = user_line()
            self.reads.append(line)
            self.calls.append(Call("intertwine::read", {"self": value}, (), None, self.module, line))

    def restore(self) -> None:
        """Restore the contents of parameters, buffers and inputs that the run overwrote."""
        with torch.no_grad():
            for key, (tensor, memory) in self._given.items():
                if key in self._before:
                    memory.copy_(self._before[key])
                if storage_key(tensor) != key:
                    tensor.data = memory

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation and record it."""
        kwargs = kwargs or {}
        composed = self._within or torch.is_inference_mode_enabled()  # ``aten::conv2d`` and its like arrive whole
        if (steps := decomposition(func, composed)) is not None:
            outside, self._within = self._within, True
            try:
                with self:
                    return steps(*args, **kwargs)
            finally:
                self._within = outside
        arguments = dict(_by_name(func, args, kwargs))
        before = {id(t): self.ref(t) for t in tensors_in(arguments)}
        varies = any(ref is not None and self._varies(ref) for ref in before.values())
        constants = {id(t): self._constant(t) for t in tensors_in(arguments) if before[id(t)] is None} if varies else {}
        name = func._schema.name
        if not varies and name == "aten::_local_scalar_dense" and args[0].is_meta:
            number = self._meta.values(func, args, kwargs)
            if number is not None:
                return number
        for tensor in (*_written(func, arguments), *_running_statistics(name, arguments)):
            if (key := storage_key(tensor)) in self._given and key not in self._before:
                self._before[key] = self._given[key][1].clone()
        if varies:
            self._keep_under(_written(func, arguments))
        result = func(*args, **kwargs)
        if name in UNWRITTEN and not varies:
            result.zero_()  # nobody may depend on its old contents, and every run finds the same
        if not varies:
            self._meta.follow(func, args, kwargs, result)
            if torch.Tag.nondeterministic_seeded in func.tags or any(ref is not None for ref in before.values()):
                self._follow_constants(func, arguments, before, result)
            return result
        deciding = self._deciding(func, arguments)
        for tensor in deciding:
            self.read(tensor, isinstance(result, bool))
        if deciding and not any(True for _ in tensors_in(result)):
            return self._answer(result) if isinstance(result, bool) else result
        whole = name == "aten::slice" and arguments["end"] in _ENDS and geometry(result) == geometry(args[0])
        if whole and (value := before[id(args[0])]) is not None:
            self._remember(result, value)  # ``:``, which older releases of PyTorch take for a slice
        else:
            self._record(func, name, arguments, {**before, **constants}, result)
        return result

    def _answer(self, answer: bool) -> bool:
        """The answer that a yes-or-no question gets."""
        if self.answers is None:
            return answer
        if len(self.answers) < len(self._given_answers):
            answer = self._given_answers[len(self.answers)]
        self.answers.append(answer)
        return answer

    def _follow_constants(self, func: Any, arguments: dict, refs: Mapping[int, Ref | None], result: Any) -> None:
        """Keep the values of what buffers alone determine, or their source: a slice of a buffer shares its memory."""
        known = {id(t): refs[id(t)] or self._constant(t) for t in tensors_in(arguments)}
        source = Call(func._schema.name, _symbols(arguments, known), (), func)
        random = torch.Tag.nondeterministic_seeded in func.tags
        drawn = random or any(self.values[ref.id].drawn for ref in known.values())
        for tensor in tensors_in(result):
            value = replace(self._constant_value(tensor), drawn=drawn)
            self._new(tensor, replace(value, source=source if value.data is None and result is tensor else None))
        for tensor in _written(func, arguments):
            self._write(tensor, self._new(tensor, replace(self._constant_value(tensor), drawn=drawn)))

    def _record(self, func: Any, name: str, arguments: dict, refs: Mapping[int, Any], result: Any) -> None:
        symbols = _symbols(arguments, refs)
        written, returned = _written(func, arguments), [] if result is None else results(result)
        outputs: list[Ref | None] = []
        place, source = _ASIDE.get(name, (-1, ""))
        for i, tensor in enumerate(returned):
            if tensor is None or (i == place and not self._varies(symbols[source])):
                outputs.append(None)
                continue
            self.dtypes.add(tensor.dtype)
            outputs.append(self._new(tensor, _value(tensor, "result")))
        beside = [w for w in written if not any(t is w for t in returned)]
        if beside:  # outputs that are written but not returned come last
            name = f"{name} (writes its argument)" if len(outputs) == 0 else name
            outputs += [self._new(w, _value(w, "result")) for w in beside]
        if written:
            name = name.removesuffix("_")
            for tensor in written if torch.Tag.inplace_view not in func.tags else ():
                self._write(tensor, self._known[id(tensor)][2])
        self.calls.append(Call(name, symbols, tuple(outputs), func, self.module, user_line()))

    def _write(self, tensor: Tensor, value: Ref) -> None:
        self._writes.setdefault(storage_key(tensor), []).append((geometry(tensor), value))
        self._remember(tensor, value)

    def _after(self, key: int, place: Geometry, value: Ref, version: int) -> Ref:
        """Contents of a place after writes that touch it: the last one that covers it, and others put into it."""
        writes = [(g, r) for g, r in self._writes.get(key, [])[version:] if g == place or overlap(g, place)]
        last = max((i for i, (there, _) in enumerate(writes) if covers(there, place)), default=None)
        if last is not None:
            there, value = writes[last]
            if there != place:
                value = self._derived("intertwine::part_of_write", place, {"self": value})
            writes = writes[last + 1 :]
        if all(covers(place, there) for there, _ in writes):
            for _, written in writes:
                value = self._derived("intertwine::written_into", place, {"self": value, "src": written})
            return value
        around = [
            g for g in self._views[key] if g != place and all(covers(g, p) for p in (place, *(w for w, _ in writes)))
        ]
        if not around:
            return self._derived("intertwine::overwritten", place, {"self": [value, *(r for _, r in writes)]})
        whole = min(around, key=lambda g: prod(g.shape))
        at = self._after(key, whole, *self._views[key][whole])
        self._views[key][whole] = at, len(self._writes[key])
        return self._derived("intertwine::part_of_write", place, {"self": at})

    def _underlying(self, tensor: Tensor, under: Tensor) -> Ref:
        """The constant that a tensor showed before anything that varies was written into its memory."""
        data = self._meta.of(tensor)
        if not tensor.is_meta:
            same = under.dtype == tensor.dtype
            data = under.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()) if same else None
        return self._numbered(_value(tensor, "constant", data=None if data is None else data.detach().clone()))

    def _keep_under(self, written: list[Tensor]) -> None:
        """Keep the contents of constants that are about to be partly overwritten by something that varies."""
        for tensor in written:
            key = storage_key(tensor)
            if key not in self._views and key not in self._under:
                self._held(tensor)
                whole = tensor.untyped_storage().nbytes() // tensor.element_size()
                self._under[key] = tensor.detach().as_strided((whole,), (1,), 0).clone()

    def _derived(self, op: str, place: Geometry, arguments: dict[str, Any]) -> Ref:
        """Contents of a place, as the result of an operation on what was written."""
        value = self._numbered(Value("result", place.shape, place.dtype, stride=place.stride, offset=place.offset))
        self.calls.append(Call(op, arguments, (value,), None, self.module, user_line()))
        return value

    def _constant(self, tensor: Tensor) -> Ref:
        key = id(tensor)
        kept = self._constants.get(key)
        if kept is None or kept[1] != tensor._version:
            alive = weakref.ref(tensor, lambda _: self._constants.pop(key, None))
            kept = self._constants[key] = (alive, tensor._version, self._numbered(self._constant_value(tensor)))
        return kept[2]

    def _constant_value(self, tensor: Tensor) -> Value:
        data = self._meta.of(tensor)
        return _value(tensor, "constant", data=None if data is None else data.detach().clone())

    def _varies(self, ref: Ref) -> bool:
        return self.values[ref.id].kind != "constant"

    def _deciding(self, func: Any, arguments: Mapping[str, Any]) -> list[Tensor]:
        """Tensors whose contents determine a number, or a shape, that an operation gives.

        The choice of a boolean buffer does not count: no symmetry moves it, and what it picks from is fixed.
        """
        if func._schema.name in _MASKED:
            masks = [
                t for t in tensors_in(arguments[_MASKED[func._schema.name]]) if t.dtype in (torch.bool, torch.uint8)
            ]
            held = ((t, self.values[ref.id]) for t in masks if (ref := self.ref(t)) is not None)
            return [t for t, value in held if value.kind != "buffer" or value.dtype != torch.bool]
        if func._schema.name in _TRACED:
            return []
        tags = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
        return list(tensors_in(arguments)) if any(tag in func.tags for tag in tags) else []

    def _new(self, tensor: Tensor, value: Value) -> Ref:
        ref = self._numbered(value)
        self._remember(tensor, ref)
        return ref

    def _numbered(self, value: Value) -> Ref:
        self.values.append(value)
        return Ref(len(self.values) - 1)

    def _remember(self, tensor: Tensor, ref: Ref) -> None:
        key, number = self._held(tensor), id(tensor)
        version = len(self._writes.get(key, ()))
        alive = weakref.ref(tensor, lambda _: self._known.pop(number, None))
        self._known[number] = (alive, key, ref, version)
        self._views.setdefault(key, {})[geometry(tensor)] = (ref, version)

    def _held(self, tensor: Tensor) -> int:
        """The number of a tensor's storage, which stays its own from now on."""
        key = storage_key(tensor)
        if key not in self._storages:
            self._storages[key] = StorageWeakRef(tensor.untyped_storage())
        return key


class WatchReads(TorchFunctionMode):
    """Watches host reads that are not operations: ``tolist``, ``numpy``, ``torch.tensor([x, y])``."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Pass every call on."""
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if name in _PRINTERS and args and isinstance(args[0], Tensor):
            asked = self._recorder.answers
            self._recorder.read(args[0])
            try:
                return func(*args, **kwargs)
            finally:
                self._recorder.answers, self._recorder.printed = asked, True
        if name in _READERS and args and isinstance(args[0], Tensor):
            self._recorder.read(args[0])
        if name in _BUILDERS:
            for tensor in tensors_in([a for a in (*args, *kwargs.values()) if isinstance(a, list | tuple)]):
                self._recorder.read(tensor)
        return func(*args, **kwargs)


def _by_name(func: Any, args: tuple, kwargs: dict) -> Iterator[tuple[str, Any]]:
    for i, argument in enumerate(func._schema.arguments):
        if i < len(args):
            yield argument.name, args[i]
        elif argument.name in kwargs:
            yield argument.name, kwargs[argument.name]
        elif argument.has_default_value():
            yield argument.name, argument.default_value


def _symbols(arguments: Mapping[str, Any], refs: Mapping[int, Any]) -> Any:
    """Arguments with each tensor replaced by what stands for it, by its id."""
    return map_leaves(arguments, lambda leaf: refs[id(leaf)] if isinstance(leaf, Tensor) else leaf)


def _written(func: Any, arguments: Mapping[str, Any]) -> list[Tensor]:
    names = (a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write)
    return [t for name in names for t in tensors_in(arguments.get(name))]


def _running_statistics(name: str, arguments: Mapping[str, Any]) -> list[Tensor]:
    """Running statistics that a batch norm in training mode writes, which its schema does not name."""
    if name not in BATCH_NORMS or not arguments.get("training"):
        return []
    return [t for key in ("running_mean", "running_var") for t in tensors_in(arguments.get(key))]


def _value(tensor: Tensor, kind: Any, name: str = "", data: Tensor | None = None) -> Value:
    place = geometry(tensor)
    return Value(kind, place.shape, place.dtype, name, data, place.stride, place.offset)
