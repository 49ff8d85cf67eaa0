"""Launch of the variants from Python, if the package was built without a C++ compiler."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch

_WINDOW, _COOPERATIVE, _CLUSTER = 1, 2, 4  # CUlaunchAttributeID in cuda.h
_DYNAMIC_SHARED, _LARGE_CLUSTER = 8, 14  # CUfunction_attribute
_MOST_PERSISTING, _MOST_WINDOW = 108, 109  # CUdevice_attribute
_PERSISTING_LIMIT, _RELAXED_CAPTURE = 6, 2  # CUlimit, CUstreamCaptureMode
_PROMOTE_128_BYTES = 2  # CUtensorMapL2promotion
_MAP_BYTES, _MAP_ALIGNMENT = 128, 64
_STATIC_SHARED = 48 * 1024


class _Window(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("bytes", ctypes.c_size_t), ("hit_ratio", ctypes.c_float),
                ("hit", ctypes.c_int), ("miss", ctypes.c_int)]  # fmt: skip


class _Value(ctypes.Union):
    _fields_ = [("bytes", ctypes.c_char * 64), ("cooperative", ctypes.c_int), ("cluster", ctypes.c_uint * 3),
                ("window", _Window)]  # fmt: skip


class _Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("padding", ctypes.c_int), ("value", _Value)]


class _Config(ctypes.Structure):
    _fields_ = [("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared_bytes", ctypes.c_uint),
                ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(_Attribute)),
                ("count", ctypes.c_uint)]  # fmt: skip


class Launcher:
    """Machine code of the variants, loaded once for each device."""

    def __init__(self, variants: Sequence[Mapping[str, Any]], codes: Sequence[bytes]) -> None:
        """Create a launcher.

        Args:
            variants: tables of the launches.
            codes: machine code of each variant.
        """
        self._variants, self._codes = variants, codes
        self._driver: Any = None
        self._contexts: dict[int, ctypes.c_void_p] = {}
        self._functions: dict[tuple[int, ...], list[ctypes.c_void_p]] = {}
        self._limits: dict[int, int] = {}
        self._lock = threading.Lock()

    def run(self, number: int, numbers: Sequence[int], buffers: Sequence[torch.Tensor]) -> None:
        """Enqueue a call on the current stream.

        Args:
            number: index of the variant.
            numbers: numbers of the launches.
            buffers: inputs and results.

        Raises:
            RuntimeError: the driver rejects the code or a launch.
        """
        table, device = self._variants[number], buffers[0].device
        with torch.cuda.device(device):
            stream = torch.cuda.current_stream(device).cuda_stream
            functions = self._functions_at(number, device.index, stream)
            spaces = []
            for space in table["workspaces"]:
                made = torch.empty(numbers[space["number"]], dtype=torch.uint8, device=device)
                spaces.append(made.zero_() if space["zero"] else made)
            every = [*buffers, *spaces]
            for launch in table["launches"]:
                self._enqueue(launch, functions, numbers, every, stream)

    def _functions_at(self, number: int, device: int, stream: int) -> list[ctypes.c_void_p]:
        """Return the kernels of a variant, loaded at the first call, in torch's context of the device.

        Code with state is loaded for each stream and for each graph that is captured.
        """
        with self._lock:
            if self._driver is None:
                self._driver = ctypes.CDLL("libcuda.so.1")
            if device not in self._contexts:
                context = ctypes.c_void_p()
                self._check(self._driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cannot use the GPU")
                self._contexts[device] = context
            self._check(self._driver.cuCtxSetCurrent(self._contexts[device]), "cannot use the GPU")
            place: tuple[int, ...] = (number, device)
            if self._variants[number]["keeps_state"]:
                place = (number, device, stream, self._graph(stream))
            if place not in self._functions:
                mode = ctypes.c_int(_RELAXED_CAPTURE)  # loading is not part of a graph
                self._driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
                try:
                    self._functions[place] = self._loaded(number, device)
                finally:
                    self._driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
            return self._functions[place]

    def _graph(self, stream: int) -> int:
        """Return the number of the graph that is being captured on a stream; 0 for none."""
        status, graph = ctypes.c_int(), ctypes.c_ulonglong()
        found = self._driver.cuStreamGetCaptureInfo_v2(
            ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(graph), None, None, None
        )
        self._check(found, "cannot use the stream")
        return graph.value if status.value else 0

    def _loaded(self, number: int, device: int) -> list[ctypes.c_void_p]:
        table, module, functions = self._variants[number], ctypes.c_void_p(), []
        self._check(self._driver.cuModuleLoadData(ctypes.byref(module), self._codes[number]), "cannot load")
        for symbol in table["symbols"]:
            function = ctypes.c_void_p()
            found = self._driver.cuModuleGetFunction(ctypes.byref(function), module, symbol.encode())
            self._check(found, "cannot find a kernel")
            if table["large_cluster"]:
                self._driver.cuFuncSetAttribute(function, _LARGE_CLUSTER, 1)
            functions.append(function)
        if any(launch["window"] for launch in table["launches"]):
            self._reserve_l2(device)
        return functions

    def _reserve_l2(self, device: int) -> None:
        persisting, most = ctypes.c_size_t(), ctypes.c_int()
        self._driver.cuCtxGetLimit(ctypes.byref(persisting), _PERSISTING_LIMIT)
        self._driver.cuDeviceGetAttribute(ctypes.byref(most), _MOST_PERSISTING, device)
        if persisting.value == 0:
            self._driver.cuCtxSetLimit(_PERSISTING_LIMIT, ctypes.c_size_t(most.value))

    def _enqueue(
        self, launch: Mapping[str, Any], functions: Sequence[ctypes.c_void_p], numbers: Sequence[int],
        buffers: Sequence[torch.Tensor], stream: int,
    ) -> None:  # fmt: skip
        first = launch["first"]
        shared, device = numbers[first + 6], buffers[0].device.index
        values = [
            buffers[value].data_ptr() if kind == "buffer" else numbers[value] if kind == "number" else value
            for kind, value in launch["arguments"]
        ]
        slots = (ctypes.c_uint64 * max(len(values), 1))(*(value & (2**64 - 1) for value in values))
        at = ctypes.addressof(slots)
        parameters = (ctypes.c_void_p * max(len(values), 1))(*(at + 8 * place for place in range(len(values))))
        room = (ctypes.c_char * (_MAP_BYTES * len(launch["maps"]) + _MAP_ALIGNMENT))()
        maps = -(-ctypes.addressof(room) // _MAP_ALIGNMENT) * _MAP_ALIGNMENT
        for place, (kind, value) in enumerate(launch["arguments"]):
            if kind == "map":
                parameters[place] = maps + _MAP_BYTES * value
                self._encode(launch["maps"][value], numbers, buffers, maps + _MAP_BYTES * value)
        attributes = (_Attribute * 3)()
        count = 0
        if launch["cooperative"]:
            attributes[count].id, attributes[count].value.cooperative = _COOPERATIVE, 1
            count += 1
        if launch["cluster"]:
            attributes[count].id = _CLUSTER
            attributes[count].value.cluster[:] = launch["cluster"]
            count += 1
        if launch["window"]:
            most, buffer = ctypes.c_int(), buffers[launch["window"][0]]
            self._driver.cuDeviceGetAttribute(ctypes.byref(most), _MOST_WINDOW, device)
            size = min(buffer.numel() * buffer.element_size(), most.value)
            attributes[count].id = _WINDOW
            attributes[count].value.window = _Window(buffer.data_ptr(), size, launch["window"][1], 2, 1)
            count += 1
        config = _Config(shared_bytes=shared, stream=stream, attributes=attributes, count=count)
        config.grid[:] = numbers[first : first + 3]
        config.block[:] = numbers[first + 3 : first + 6]
        function = functions[launch["entry"]]
        place = function.value or 0
        if shared > max(_STATIC_SHARED, self._limits.get(place, 0)):
            self._check(self._driver.cuFuncSetAttribute(function, _DYNAMIC_SHARED, shared), "cannot reserve memory")
            self._limits[place] = shared
        launched = self._driver.cuLaunchKernelEx(ctypes.byref(config), function, parameters, None)
        self._check(launched, "cannot launch")

    def _encode(
        self, table: Mapping[str, int], numbers: Sequence[int], buffers: Sequence[torch.Tensor], address: int
    ) -> None:
        """Write a tensor map to an address."""
        rank, first = table["rank"], table["number"]
        sizes, strides, box = (
            kind(*numbers[start:end])
            for kind, start, end in (
                (ctypes.c_uint64 * rank, first, first + rank),
                (ctypes.c_uint64 * rank, first + rank, first + 2 * rank - 1),
                (ctypes.c_uint32 * rank, first + 2 * rank - 1, first + 3 * rank - 1),
            )
        )
        tensor = ctypes.c_void_p(buffers[table["buffer"]].data_ptr())
        made = self._driver.cuTensorMapEncodeTiled(
            ctypes.c_void_p(address), table["dtype"], rank, tensor, sizes, strides, box,
            (ctypes.c_uint32 * rank)(*[1] * rank), 0, table["swizzle"], _PROMOTE_128_BYTES, 0,
        )  # fmt: skip
        self._check(made, "cannot make a tensor map")

    def _check(self, error: int, what: str) -> None:
        if error:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(error, ctypes.byref(text))
            raise RuntimeError(f"{what}: {(text.value or b'unknown error').decode()}")
