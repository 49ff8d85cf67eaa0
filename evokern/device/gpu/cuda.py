"""Loading, launching and waiting for a candidate with the driver API (cuda-bindings).

Everything runs on torch's current stream, which keeps the order of torch's operations and the candidate's launches.
"""

from __future__ import annotations

import ctypes
import math
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from cuda.bindings import driver

from evokern.compile.elf import symbol_of
from evokern.compile.records import Built, Program
from evokern.declaration.kernel import L2Window, Launch, Scalar, TileMap, bfloat16_bits
from evokern.device.gpu.driver_call import check as check
from evokern.device.gpu.driver_call import context_error as context_error
from evokern.device.gpu.driver_call import error_name
from evokern.device.gpu.module_state import ModuleState
from evokern.gate.check import Call, RunFailed
from evokern.hardware.profiles import PORTABLE_CLUSTER_BLOCKS
from evokern.hardware.tensor_map import DTYPE_BYTES, FILLS, SWIZZLES, TensorMap
from evokern.measurement.timing import LaunchLimit
from evokern.study.trial import Outcome

_CTYPES: Mapping[str, Any] = {
    "i32": ctypes.c_int32, "u32": ctypes.c_uint32, "i64": ctypes.c_int64, "u64": ctypes.c_uint64,
    "f32": ctypes.c_float, "f64": ctypes.c_double, "bool": ctypes.c_bool,
}  # fmt: skip
_SPIN_S = 0.002


class Candidate:
    """Built candidate, loaded into the context."""

    def __init__(self, built: Built) -> None:
        """Load every program.

        Raises:
            RunFailed: the driver rejects the machine code.
        """
        self.built = built
        self._modules = [_load(program) for program in built.programs]
        self._functions: dict[tuple[int, str], Any] = {}
        self._shared_limits: dict[tuple[int, str], int] = {}
        self._constants: dict[tuple[int, str], tuple[int, int] | None] = {}
        self._states = {
            program: ModuleState(self._modules[program], variables)
            for program, variables in enumerate(built.variables) if variables
        }  # fmt: skip
        self._wants_window = any(launch.l2_window for build in built.builds for launch in build.launches)
        if self._wants_window:
            _set_persisting_l2(enabled=True)

    def unload(self) -> None:
        """Unload the modules; the context must be usable."""
        if self._wants_window:
            _set_persisting_l2(enabled=False)
        for module in self._modules:
            driver.cuModuleUnload(module)

    def prepare(self, program: int, call: Call) -> PreparedCall:
        """Return a call with prepared arguments that can be enqueued any number of times.

        Raises:
            RunFailed: a launch exceeds the GPU's limits.
        """
        launches = [self._launch(program, launch, call.arguments) for launch in call.launches]
        constants = [
            (*place, call.arguments[name])
            for name, role in call.roles.items()
            if role == "constant" and (place := self._constant(program, name, call.arguments[name])) is not None
        ]
        zeroed = [call.arguments[name] for name in call.zeroed]
        return PreparedCall(launches, zeroed, constants, self._states.get(program))

    def prefer_shared_memory(self, program: int, entry: str) -> None:
        """Make SMs that run an entry point reserve as much shared memory as possible, instead of L1 cache."""
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
        most = driver.CUshared_carveout.CU_SHAREDMEM_CARVEOUT_MAX_SHARED
        check(driver.cuFuncSetAttribute(self._symbol(program, entry), attribute, int(most)))

    def changed(self, program: int) -> list[str]:
        """Return the undeclared variables of a program whose values were changed by calls.

        Raises:
            RunFailed: an earlier asynchronous call failed.
        """
        return self._states[program].changed() if program in self._states else []

    def _constant(self, program: int, name: str, tensor: torch.Tensor) -> tuple[int, int] | None:
        """Return the address and size of a `__constant__` array, None if unused; poison it the first time.

        Raises:
            RunFailed: the array is smaller than the tensor.
        """
        key = program, name
        if key not in self._constants:
            symbol = symbol_of(name, self.built.programs[program].constants)
            self._constants[key] = None
            if symbol is not None:
                pointer, size = check(driver.cuModuleGetGlobal(self._modules[program], symbol.encode()))
                # On the stream of the calls, because torch's streams do not wait for the default stream.
                check(driver.cuMemsetD8Async(pointer, 0xFF, size, torch.cuda.current_stream().cuda_stream))
                self._constants[key] = int(pointer), int(size)
        place = self._constants[key]
        if place is not None and tensor.numel() * tensor.element_size() > place[1]:
            bytes_ = tensor.numel() * tensor.element_size()
            message = f"tensor {name!r} has {bytes_} bytes, but the __constant__ array has only {place[1]} bytes"
            raise RunFailed(Outcome.CRASHED, {"error": message})
        return place

    def _launch(self, program: int, launch: Launch, arguments: Mapping[str, torch.Tensor]) -> _PreparedLaunch:
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = launch.block
        config.sharedMemBytes = launch.shared_bytes
        config.hStream = torch.cuda.current_stream().cuda_stream
        attributes = _attributes(launch, arguments, (program, launch.entry) in self.built.cooperative)
        config.attrs = attributes
        config.numAttrs = len(attributes)
        values = [_value(argument, arguments) for argument in launch.args]
        pointers = (ctypes.c_void_p * max(len(values), 1))(*(ctypes.addressof(value) for value in values))
        return _PreparedLaunch(config, self._function(program, launch), values, pointers)

    def _symbol(self, program: int, entry: str) -> Any:
        key = (program, entry)
        if key not in self._functions:
            symbol = self.built.programs[program].lowered[entry]
            self._functions[key] = check(driver.cuModuleGetFunction(self._modules[program], symbol.encode()))
        return self._functions[key]

    def _function(self, program: int, launch: Launch) -> Any:
        key, function = (program, launch.entry), self._symbol(program, launch.entry)
        # The limit only grows, because problems may share a module and earlier prepared calls are launched again.
        if launch.shared_bytes > self._shared_limits.get(key, 0):
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(driver.cuFuncSetAttribute(function, attribute, launch.shared_bytes))
            self._shared_limits[key] = launch.shared_bytes
        if launch.clustered and math.prod(launch.clustered) > PORTABLE_CLUSTER_BLOCKS:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            check(driver.cuFuncSetAttribute(function, attribute, 1))
        return function


class _PreparedLaunch:
    def __init__(self, config: Any, function: Any, values: list[Any], pointers: Any) -> None:
        self._config = config
        self._function = function
        self._values = values
        self._pointers = pointers
        self._address = ctypes.addressof(pointers)

    def enqueue(self) -> None:
        (error,) = driver.cuLaunchKernelEx(self._config, self._function, self._address, 0)
        if error != driver.CUresult.CUDA_SUCCESS:
            raise RunFailed(Outcome.CRASHED, {"error": error_name(error)})


class PreparedCall:
    """Sequence of launches with bound buffers."""

    def __init__(
        self,
        launches: Sequence[_PreparedLaunch],
        zeroed: Sequence[torch.Tensor],
        constants: Sequence[tuple[int, int, torch.Tensor]] = (),
        state: ModuleState | None = None,
    ) -> None:
        self._launches = launches
        self._zeroed = zeroed
        self._constants = constants
        self._state = state

    def enqueue(self) -> None:
        """Enqueue the whole sequence on the current stream, or add it to the graph being captured.

        Raises:
            RunFailed: the driver rejects a launch.
        """
        for tensor in self._zeroed:
            tensor.zero_()
        for address, _, tensor in self._constants:
            stream = torch.cuda.current_stream().cuda_stream
            size = tensor.numel() * tensor.element_size()
            check(driver.cuMemcpyDtoDAsync(address, tensor.data_ptr(), size, stream))
        if self._state is not None:
            self._state.restore()
        for launch in self._launches:
            launch.enqueue()


class GpuRunner:
    """Runner of the gate on the GPU."""

    def __init__(
        self,
        candidate: Candidate,
        program: int,
        hang_s: float,
        before: Callable[[], None] = lambda: None,
        after: Callable[[], None] = lambda: None,
        limits: Sequence[LaunchLimit] = (),
    ) -> None:
        """Create a runner.

        Args:
            candidate: candidate to run.
            program: index of its program.
            hang_s: seconds after which one launch sequence counts as hung.
            before: function called before every call.
            after: function called after the first call or calls, and after the remaining ones.
            limits: launch times that stop the candidate.
        """
        self._candidate = candidate
        self._program = program
        self._hang_s = hang_s
        self._before, self._after = before, after
        self._limits = limits

    def run(self, calls: Sequence[Call]) -> None:
        """Run the first call alone, which reveals most failures, then all others.

        Raises:
            RunFailed: a launch failed, hung, or took too long.
        """
        taken = self.times(calls[:1])
        for limit in self._limits:
            if taken and min(taken) > limit.us:
                taken += self.times(calls[len(taken) : limit.launches])
                if len(taken) == limit.launches and min(taken) > limit.us:
                    evidence = {"launches_us": taken, "limit_us": limit.us, "elite_us": limit.raced_us}
                    raise RunFailed(Outcome.SLOW, evidence | {"bound_us": min(taken) / limit.uncertainty})
        self._after()
        rest = calls[len(taken) :]
        if rest:
            for call in rest:
                self._before()
                self._candidate.prepare(self._program, call).enqueue()
            finish(self._hang_s * len(rest), self._hang_s)
            self._after()

    def times(self, calls: Sequence[Call]) -> list[float]:
        """Run some calls one by one; return the time of each in µs.

        Raises:
            RunFailed: a launch failed or hung.
        """
        taken = []
        for call in calls:
            prepared = self._candidate.prepare(self._program, call)
            self._before()
            taken.append(timed_us(prepared.enqueue, self._hang_s))
        return taken


def timed_us(enqueue: Callable[[], None], limit_s: float) -> float:
    """Run the enqueued work and wait for it; return its time on the GPU in µs.

    Raises:
        RunFailed: a kernel crashed, or the limit passed.
    """
    began, ended = new_event(timing=True), new_event(timing=True)
    began.record()
    enqueue()
    ended.record()
    finish(limit_s)
    return 1000.0 * float(began.elapsed_time(ended))


def finish(limit_s: float, hang_s: float | None = None) -> None:
    """Wait until the current stream is idle.

    Args:
        limit_s: longest wait in seconds.
        hang_s: limit recorded for a hung candidate; None for `limit_s`.

    Raises:
        RunFailed: a kernel crashed, or the limit passed.
    """
    event = new_event()
    event.record()
    handle = driver.CUevent(event.cuda_event)
    began = time.perf_counter()
    while True:
        (error,) = driver.cuEventQuery(handle)
        if error == driver.CUresult.CUDA_SUCCESS:
            return
        if error != driver.CUresult.CUDA_ERROR_NOT_READY:
            raise RunFailed(Outcome.CRASHED, {"error": error_name(error)})
        waited = time.perf_counter() - began
        if waited > limit_s and driver.cuEventQuery(handle)[0] == driver.CUresult.CUDA_ERROR_NOT_READY:
            # Query again, because this process may have been suspended between the query and the clock.
            raise RunFailed(Outcome.HUNG, {"limit_s": limit_s if hang_s is None else hang_s})
        if waited > _SPIN_S:
            time.sleep(0.0002)


def new_event(timing: bool = False) -> torch.cuda.Event:
    """Return a CUDA event."""
    return torch.cuda.Event(enable_timing=timing)  # type: ignore[no-untyped-call]


def _load(program: Program) -> Any:
    return check(driver.cuModuleLoadData(program.cubin))


def _value(argument: str | Scalar | TileMap, arguments: Mapping[str, torch.Tensor]) -> Any:
    if isinstance(argument, TileMap):
        return encoded_map(argument.described, arguments[argument.tensor].data_ptr())
    if isinstance(argument, Scalar):
        if argument.dtype == "bf16":
            return ctypes.c_uint16(bfloat16_bits(argument.value))
        if argument.dtype == "f16":
            return ctypes.c_uint16(struct.unpack("<H", struct.pack("<e", argument.value))[0])
        return _CTYPES[argument.dtype](argument.value)
    return ctypes.c_void_p(arguments[argument].data_ptr())


def encoded_map(of: TensorMap, address: int) -> Any:
    """Return the bytes of a tensor map as the driver encodes it.

    Raises:
        RunFailed: the driver refuses the map.
    """

    def kind(enumeration: Any, known: Iterable[str], name: str) -> Any:
        return enumeration(list(known).index(name))

    wide, narrow = driver.cuuint64_t, driver.cuuint32_t
    made = check(
        driver.cuTensorMapEncodeTiled(
            kind(driver.CUtensorMapDataType, DTYPE_BYTES, of.dtype), of.rank, address, [*map(wide, of.shape)],
            [*map(wide, of.strides or (0,))],  # the driver needs an array, also for one dimension
            [*map(narrow, of.box)], [*map(narrow, of.steps or (1,) * of.rank)],
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            kind(driver.CUtensorMapSwizzle, SWIZZLES, of.swizzle),
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            kind(driver.CUtensorMapFloatOOBfill, FILLS, of.fill),
        )
    )  # fmt: skip
    return (ctypes.c_uint64 * len(made.opaque))(*map(int, made.opaque))


def _attributes(launch: Launch, arguments: Mapping[str, torch.Tensor], cooperative: bool) -> list[Any]:
    attributes: list[Any] = []
    if cooperative:
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        attribute.value.cooperative = 1
        attributes.append(attribute)
    if launch.clustered:
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = launch.clustered
        attributes.append(attribute)
    if launch.l2_window:
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW
        _fill_window(attribute.value.accessPolicyWindow, launch.l2_window, arguments[launch.l2_window.tensor])
        attributes.append(attribute)
    return attributes


def _fill_window(window: Any, requested: L2Window, tensor: torch.Tensor) -> None:
    largest = _attribute(driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE)
    window.base_ptr = tensor.data_ptr()
    window.num_bytes = min(tensor.numel() * tensor.element_size(), largest)
    window.hitRatio = requested.hit_ratio
    window.hitProp = driver.CUaccessProperty.CU_ACCESS_PROPERTY_PERSISTING
    window.missProp = driver.CUaccessProperty.CU_ACCESS_PROPERTY_STREAMING


def _set_persisting_l2(enabled: bool) -> None:
    """Reserve as much of L2 as possible for persisting lines, or none; without it, access windows have no effect.

    `cuCtxResetPersistingL2Cache` is never called, because it slows later launches
    (docs/lab/2026-11-27-timing.md#persisting-l2-reset).
    """
    size = _attribute(driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE) if enabled else 0
    driver.cuCtxSetLimit(driver.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE, size)


def _attribute(which: Any) -> int:
    device = check(driver.cuCtxGetDevice())
    return int(check(driver.cuDeviceGetAttribute(which, device)))
