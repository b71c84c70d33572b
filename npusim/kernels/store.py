"""Kernels by name: generated on first use, compiled once per machine, kept on disk as object code.

A kernel name is `family:parameters`; the family says which module generates it. `kernel_address(name)` returns the
address of `void(i64 desc, i64 part, i64 ctx)`. Object files lie in the platform's cache directory (or in
`NPUSIM_KERNEL_CACHE`) under a key made of every kernel source file, the llvmlite and LLVM versions and the CPU, so a
changed source, library or machine never meets stale code. A file carries its checksum and is rebuilt when it does not
match. Files are written under a temporary name and renamed, so processes may build the same kernel at the same time;
where the directory cannot be written, kernels live in memory only.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from metadef.files import cache_folder
from npusim.kernels.cpu import Cpu, host

Progress = Callable[[str, int, int], None]

FAMILIES = {
    "aipp": "npusim.kernels.aipp",
    "exec": "npusim.kernels.dispatch",
    "tile": "npusim.kernels.tiles",
    "conv": "npusim.kernels.conv_fill",
    "winograd": "npusim.kernels.winograd_code",
    "fourier": "npusim.kernels.fourier_code",
    "spectra": "npusim.kernels.fourier_products",
    "matmul": "npusim.kernels.matmul",
    "packb": "npusim.kernels.matmul",
    "pool": "npusim.kernels.pool",
    "map": "npusim.kernels.elementwise",
    "flat": "npusim.kernels.elementwise",
    "stream": "npusim.kernels.elementwise",
    "copy": "npusim.kernels.move",
    "gather": "npusim.kernels.move",
    "lanes": "npusim.kernels.lanes",
    "bilinear": "npusim.kernels.resize",
    "scatter": "npusim.kernels.move",
    "transdata": "npusim.kernels.transdata",
    "reduce": "npusim.kernels.reduce",
    "softmax": "npusim.kernels.rows",
    "layernorm": "npusim.kernels.rows",
    "peak": "npusim.kernels.tiles",
}
_MAGIC = b"npusim-kernel-1\n"
_lock = threading.RLock()
_addresses: dict[str, int] = {}
_progress: Progress | None = None
_asked: list[set[str]] = []


def kernel_address(name: str) -> int:
    """Machine address of a kernel, compiling or loading it first where needed.

    Raises KeyError for an unknown family and ValueError for parameters its generator refuses.
    """
    address = _addresses.get(name)
    for names in _asked:
        names.add(name)
    if address is None:
        prepare([name])
        address = _addresses[name]
    return address


def prepare(names: Iterable[str]) -> None:
    """Make a set of kernels ready, reporting each compilation to the progress hook as (name, index, count)."""
    wanted = [n for n in dict.fromkeys(names) if n not in _addresses]
    if not wanted:
        return
    with _lock:
        missing = [n for n in wanted if n not in _addresses]
        if not missing:
            return
        code = {n: _read(_path(n)) for n in missing}
        cold = [n for n in missing if code[n] is None]
        for index, name in enumerate(cold):
            if _progress is not None:
                _progress(name, index, len(cold))
            code[name] = object_code(name, host())
            _write(_path(name), code[name] or b"")
        _addresses.update(_load({n: c for n, c in code.items() if c is not None}))


@contextlib.contextmanager
def asked_kernels() -> Iterator[set[str]]:
    """The names of all kernels whose addresses are asked for inside, by this thread or another."""
    names: set[str] = set()
    _asked.append(names)
    try:
        yield names
    finally:
        # By identity: two empty sets are equal.
        _asked[:] = [item for item in _asked if item is not names]


def warm(names: Iterable[str] | None = None) -> int:
    """Compile every kernel of the common set (or the given names) into the store; returns how many there are."""
    from npusim.kernels.catalog import common_kernels

    todo = list(names) if names is not None else common_kernels()
    prepare(todo)
    return len(todo)


def set_progress(hook: Progress | None) -> Progress | None:
    """Install a callback (kernel name, index, count) called before each cold compilation; returns the former one."""
    global _progress
    previous, _progress = _progress, hook
    return previous


def loaded() -> list[str]:
    """Names of the kernels this process has used."""
    return sorted(_addresses)


def cache_directory() -> Path:
    """Directory of the object files for this source tree, library versions and CPU."""
    return cache_folder() / store_key()


@functools.cache
def store_key() -> str:
    """Hash over everything compiled code depends on."""
    import llvmlite
    import llvmlite.binding as llvm

    cpu = host()
    digest = hashlib.sha256()
    for text in (llvmlite.__version__, str(llvm.llvm_version_info), cpu.triple, cpu.name, cpu.features):
        digest.update(text.encode() + b"\0")
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if not path.name.startswith("plans"):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:24]


def object_code(name: str, cpu: Cpu) -> bytes:
    """Relocatable object of one kernel for any CPU description (no caching)."""
    return bytes(target_machine(cpu).emit_object(optimised_module(name, cpu)))


def assembly(name: str, cpu: Cpu) -> str:
    """Assembly text of one kernel for any CPU description."""
    return str(target_machine(cpu).emit_assembly(optimised_module(name, cpu)))


def symbol(name: str) -> str:
    """External symbol of a kernel name."""
    return "npusim_" + hashlib.sha256(name.encode()).hexdigest()[:20]


def optimised_module(name: str, cpu: Cpu) -> Any:
    """Generate and optimise one kernel; an llvmlite module reference."""
    import llvmlite.binding as llvm

    from npusim.kernels.ir import Kernel

    family, _, parameters = name.partition(":")
    if family not in FAMILIES:
        raise KeyError(f"unknown kernel family {family!r} in {name!r}; known: {', '.join(sorted(FAMILIES))}")
    kernel = Kernel(symbol(name), cpu)
    importlib.import_module(FAMILIES[family]).generate(kernel, family, parameters)
    module = llvm.parse_assembly(str(kernel.module))
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = options.slp_vectorization = False
    options.loop_unrolling = options.loop_interleaving = False
    builder = llvm.create_pass_builder(target_machine(cpu), options)
    builder.getModulePassManager().run(module, builder)
    return module


@functools.cache
def target_machine(cpu: Cpu) -> Any:
    """llvmlite target machine for a CPU description."""
    import llvmlite.binding as llvm

    _initialise_llvm(cpu == host())
    target = llvm.Target.from_triple(cpu.triple)
    return target.create_target_machine(cpu=cpu.name, features=cpu.features, opt=3, jit=True)


@functools.cache
def _initialise_llvm(native: bool) -> None:
    import llvmlite.binding as llvm

    if native:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
    else:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()


def _path(name: str) -> Path:
    return cache_directory() / (symbol(name) + ".o")


def _read(path: Path) -> bytes | None:
    """Contents of an object file, or None where it is absent or damaged (it is then rebuilt)."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    body = data[len(_MAGIC) + 32 :]
    if data[: len(_MAGIC)] != _MAGIC or data[len(_MAGIC) : len(_MAGIC) + 32] != hashlib.sha256(body).digest():
        return None
    return body


def _write(path: Path, code: bytes) -> None:
    """Store an object file; an unwritable directory only costs a compilation in the next process."""
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
        with os.fdopen(handle, "wb") as stream:
            stream.write(_MAGIC + hashlib.sha256(code).digest() + code)
        os.replace(temporary, path)
    except OSError:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def _load(code: dict[str, bytes]) -> dict[str, int]:
    """Link object files into the process; addresses by kernel name."""
    import llvmlite.binding as llvm

    cpu = host()
    _initialise_llvm(True)
    # An execution engine owns its target machine, so it gets one of its own.
    target = llvm.Target.from_triple(cpu.triple)
    machine = target.create_target_machine(cpu=cpu.name, features=cpu.features, opt=0, jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    for data in code.values():
        engine.add_object_file(llvm.ObjectFileRef.from_data(data))
    engine.finalize_object()
    addresses = {name: int(engine.get_function_address(symbol(name))) for name in code}
    lacking = [name for name, address in addresses.items() if not address]
    if lacking:
        raise RuntimeError(f"object code lacks the entry symbol of {', '.join(lacking)}")
    # Code must outlive every thread that may still be in it, so the engine is never disposed of.
    engine.detach()
    return addresses
