"""Launches of the C++ library, seen by a fake CUDA driver: geometry, arguments, streams, graphs and failures.

The library is built for tensors on the CPU, and otherwise unchanged. Its kernels do not run.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

import pytest
from packed import described, run_python
from paths import DATA, KERNELS, ROOT

from evokern.declaration.feasibility import launches_of
from evokern.declaration.kernel import Launch, Scalar, TileMap
from evokern.doctor import host_compiler
from evokern.pack import folder as package_folder
from evokern.pack.baseline_code import baselines_of
from evokern.pack.library import Library, build_library
from evokern.pack.operator_code import Description
from evokern.pack.variant import _bits
from evokern.study.discovery import find_kernel

CASES: Mapping[str, tuple[str, str, dict[str, Any]]] = {
    "norm": ("rmsnorm", "ROWS=16 COLS=4096 dtype=bf16 residual=add", {"ROW_SUM": "two_launches"}),
    "window": (
        "attention", "B=2 H=8 S=512 D=64", {"SCHEDULE": "persistent", "GRID_BLOCKS": 58, "L2_WINDOW": "k"},
    ),
    "ticket": ("matmul", "M=64 N=512 K=512", {"SPLIT_K": 2, "MERGE": "ticket"}),
    "maps": ("mapped", "M=20 N=40", {"SWIZZLE": "64B", "COLUMNS": 16}),
}  # fmt: skip
CHIP = {"maps": "h100"}
LIBRARIES = {"libcuda.so.1": "libfake_cuda.so", "libtorch_cuda.so": "libfake_torch.so"}
"""Library → the one that takes its place; with other names, so that torch still finds its own on a GPU machine."""
ON_CPU = """
#define aoti_torch_device_type_cuda aoti_torch_device_type_cpu
#define aoti_torch_get_device_index fake_device_index
"""


def _replaced(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, old
    return text.replace(old, new)


def _for_cpu(sources: Mapping[str, str]) -> Library:
    code = _replaced(sources["operator.cpp"], ", CUDA, m)", ", CPU, m)")
    header = sources["operator.h"]
    for name, fake in LIBRARIES.items():
        header = _replaced(header, f'"{name}"', f'"{fake}"')
    return build_library({"operator.h": ON_CPU + header, "operator.cpp": code})


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Description, dict[str, Any]]]:
    """Packages with what the driver saw of their calls."""
    compiler, folder = host_compiler(), tmp_path_factory.mktemp("launches")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    source, arguments, made = ROOT / "tests/pack/fake_cuda.cpp", [], {}
    for name in LIBRARIES.values():
        command = [compiler, "-shared", "-fPIC", "-O1", "-std=c++17", str(source), f"-Wl,-soname,{name}", "-o", name]
        subprocess.run(command, cwd=folder, check=True)
        arguments.append(str(folder / name))
    for name, where in (("mapped", DATA / "kernels" / "mapped"), ("common", KERNELS / "common")):
        shutil.copytree(where, folder / "kernels" / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(package_folder, "build_library", _for_cpu)
        for name, (kernel, problem, changes) in CASES.items():
            made[name] = described(find_kernel(kernel), problem, package=name, chip=CHIP.get(name, "l4"), **changes)
            package_folder.write_package(folder / name, made[name], baselines_of(made[name].kernel), {})
            (folder / name / name).rename(folder / f"{name}.moved")
            (folder / name).rename(folder / f"{name}.folder")
            (folder / f"{name}.moved").rename(folder / name)
            operator = folder / name / "_operator.py"
            text = _replaced(operator.read_text(), 'self._torch.impl(rules.NAME, self._run_baseline, "CPU")', "pass")
            operator.write_text(text)
            launches = made[name].variants[0].traces.launches
            count, capability = min(len(one.args) for one in launches), made[name].variants[0].capability
            arguments += [name, str(count), str(capability)]
    shown = run_python(folder, str(ROOT / "tests/pack/launched.py"), *arguments)
    print({name: round(one["host_us"], 2) for name, one in json.loads(shown).items()}, "µs for a call")
    return {name: (made[name], one) for name, one in json.loads(shown).items()}


def _launches(found: Mapping[str, Any]) -> list[list[str]]:
    return [one.split() for one in found["events"] if one.startswith("launch")]


def _count(found: Mapping[str, Any], name: str) -> int:
    return sum(one.startswith(name) for one in found["events"])


def _number(value: str | Scalar) -> int:
    assert isinstance(value, Scalar)
    return int(value.value) & (2**64 - 1) if value.dtype[0] in "iu" else _bits(value)


@pytest.mark.parametrize("name", CASES)
def test_the_driver_gets_the_launches_of_the_study(name: str, calls: Any) -> None:
    """Grid, block, shared memory, stream, context, attributes and each argument are those that the kernel declares."""
    made, found = calls[name]
    variant = made.variants[0]
    wanted: list[Launch] = list(launches_of(made.kernel, variant.config, variant.problem))
    got = _launches(found["again"])
    assert len(got) == len(wanted)
    known = dict(zip([b.declared for b in made.signature.inputs], found["inputs"], strict=True))
    known |= zip([b.declared for b in made.signature.outputs], found["again"]["results"], strict=True)
    count = min(len(one.args) for one in wanted)
    for launch, (_, symbol, _, stream, *numbers) in zip(wanted, got, strict=True):
        assert symbol == variant.symbols[variant.entries.index(launch.entry)]
        assert stream == "7"
        assert [int(one) for one in numbers[:7]] == [*launch.grid, *launch.block, launch.shared_bytes]
        assert numbers[7] == "11"  # torch's context is current
        for argument, value in zip(launch.args, numbers[8 : 8 + count], strict=False):
            if isinstance(argument, Scalar):
                assert int(value) == _number(argument)
            elif isinstance(argument, TileMap):  # the fake map contains the address
                assert int(value) == known[argument.tensor]
            else:
                known.setdefault(argument, int(value))  # a workspace
                assert int(value) == known[argument]
        attributes = numbers[8 + count :]
        if launch.l2_window is None:
            assert attributes == []
        else:
            size = variant.traces.tensors[launch.l2_window.tensor].bytes
            assert attributes[:4] == ["attribute", "1", str(known[launch.l2_window.tensor]), str(min(size, 1 << 20))]
            assert int(attributes[5]) & 0xFFFF == 1  # streaming outside the window
    assert len(set(known.values())) == len(known)
    assert (_count(found["again"], "push"), _count(found["again"], "pop")) == (1, 1)


def test_the_driver_gets_the_tensor_maps_of_the_study(calls: Any) -> None:
    """Type, sizes, strides, box and swizzle are those of the study, and maps are aligned to 64 bytes."""
    made, found = calls["maps"]
    (launch,) = launches_of(made.kernel, made.variants[0].config, made.variants[0].problem)
    maps = [one.described for one in launch.maps]
    # alignment, type (f32), rank; sizes; strides in bytes; box and steps; interleave, swizzle (64B), promotion, fill
    wanted = f"map 0 7 2 40 20 160 16 1 {maps[0].box[1]} 1 0 2 2 0"
    assert [one for one in found["again"]["events"] if one.startswith("map")] == [wanted, wanted]
    assert (maps[0].shape, maps[0].strides, maps[0].swizzle) == ((40, 20), (160,), "64B")


@pytest.mark.parametrize("name", CASES)
def test_code_is_loaded_once_and_again_only_with_state(name: str, calls: Any) -> None:
    """Code with module variables has a copy for each stream and graph; loading is allowed during a capture."""
    made, found = calls[name]
    keeps = made.tables()[0]["keeps_state"]
    assert keeps == (name == "ticket")
    assert _count(found["again"], "load") == 0
    for where in ("stream", "graph"):
        assert _count(found[where], "load") == int(keeps)
        assert {launch[3] for launch in _launches(found[where])} == {"9"}
    assert _count(found["graph again"], "load") == 0
    loads = [
        one.split() for where in ("failed launch", "graph") for one in found[where]["events"] if one[:5] == "load "
    ]
    assert {(mode, context) for _, _, mode, context in loads} == {("2", "1")}
    modules = {_launches(found[where])[0][2] for where in ("again", "stream", "graph")}
    assert len(modules) == (3 if keeps else 1)


@pytest.mark.parametrize("name", CASES)
def test_a_failure_of_the_driver_is_an_error_and_the_next_call_works(name: str, calls: Any) -> None:
    """Code that cannot be loaded is unloaded and tried again; no context stays pushed."""
    _, found = calls[name]
    for what, message in (("load", "cannot load the machine code"), ("launch", "cannot launch")):
        failed = found[f"failed {what}"]
        assert failed["error"].startswith(f"{message}: a failure of the test")
        assert _count(failed, "push") == _count(failed, "pop") == 1
    assert _count(found["failed load"], "unload") == 1
    assert _count(found["failed launch"], "load") == 1


@pytest.mark.parametrize("name", CASES)
def test_other_calls_leave_the_library(name: str, calls: Any) -> None:
    """A baseline runs for a misaligned input, and a wrong input gets its sentence through C++."""
    made, found = calls[name]
    assert found["misaligned"]["events"] == []
    assert sum(found["stats"]["baselines"].values()) == (2 if name == "maps" else 1)
    assert list(found["stats"]["variants"].values()) == [4]
    first = made.signature.inputs[0].name
    assert f"{made.package}::{made.name}: {first} has the data type torch.float64" in found["type"]["error"]
    if name == "maps":  # the driver refuses a map for one column, because its rows are not multiples of 16 bytes
        assert found["shape"]["events"] == []
    else:
        assert "must have [" in found["shape"]["error"]
