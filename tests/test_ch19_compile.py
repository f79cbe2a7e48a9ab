"""How a kernel becomes a library: once, in one line, or not at all."""

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import minisgl.kernel
from minisgl.kernel import compile as build_module
from minisgl.kernel import fast_compare_key, indexing, store_cache
from minisgl.kernel.compile import BuildError, first_error
from minisgl.kernel.index import _jit_index_module
from minisgl.kernel.radix import _load_radix_module
from minisgl.kernel.store import _jit_store_module
from minisgl.kernel.utils import (
    KernelConfig,
    Rows,
    kernel_target,
    load_jit,
    make_cpp_args,
    simulated_kernels,
    try_load_jit,
    word_size,
)

ROOT = Path(minisgl.kernel.__file__).parents[2]
RADIX = {
    "files": ["radix.cpp"],
    "wrappers": [("common_prefix", "common_prefix<int32_t>")],
    "target": "host",
}


@pytest.fixture
def said(caplog):
    """What the loggers of this chapter write."""
    loggers = [logging.getLogger(name) for name in ("compile", "utils")]
    for logger in loggers:
        logger.addHandler(caplog.handler)
    yield caplog
    for logger in loggers:
        logger.removeHandler(caplog.handler)


@pytest.fixture
def no_compiler(monkeypatch):
    """A machine without one, on which nothing was compiled before."""
    caches = [
        *(build_module.host_compiler, build_module.cache_folder),
        *(_jit_store_module, _jit_index_module, _load_radix_module),
    ]
    for cache in caches:
        cache.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "which", lambda name: None)
        yield
    for cache in caches:
        cache.cache_clear()


def prefix(module):
    x, y = torch.arange(9).int(), torch.arange(7).int()
    return module.common_prefix(x.data_ptr(), y.data_ptr(), 7)


def test_compiled_once_and_said_once(said, tmp_path, monkeypatch):
    assert prefix(load_jit("radix", **RADIX, build_directory=tmp_path)) == 7
    (line,) = said.messages
    (folder,) = tmp_path.iterdir()
    assert line.startswith("compiling radix with ") and str(folder) in line
    assert [path.name for path in folder.iterdir()] == ["radix.so"]

    def run(*args, **kwargs):
        raise AssertionError("a compiler was started")

    monkeypatch.setattr(subprocess, "run", run)
    assert prefix(load_jit("radix", **RADIX, build_directory=tmp_path)) == 7
    assert len(said.messages) == 1


def test_other_functions_are_other_libraries(tmp_path):
    load_jit("radix", **RADIX, build_directory=tmp_path)
    wide = [("common_prefix", "common_prefix<int64_t>")]
    load_jit("radix", **RADIX | {"wrappers": wide}, build_directory=tmp_path)
    assert len([*tmp_path.glob("radix-*/radix.so")]) == 2


SOURCES = ["radix.cpp", "store.cu", "index.cu", "call.h", "copy.h", "device.h"]
SOURCES += ["sim/cuda.h", "sim/fiber.h"]


@pytest.mark.parametrize("name", SOURCES)
def test_an_edit_of_any_source_makes_another_library(
    name, tmp_path, monkeypatch
):
    load_jit("radix", **RADIX, build_directory=tmp_path / "built")
    edited = tmp_path / "edited"
    shutil.copytree(build_module.CSRC, edited)
    with (edited / name).open("a") as file:
        file.write("// edited\n")
    monkeypatch.setattr(build_module, "CSRC", edited)
    build_module._sources.cache_clear()
    load_jit("radix", **RADIX, build_directory=tmp_path / "built")
    build_module._sources.cache_clear()
    assert len([*tmp_path.glob("built/*/radix.so")]) == 2


def test_a_mistake_is_told_in_one_line_with_its_place(tmp_path):
    wrong = [("common_prefix", "uncommon_prefix<int32_t>")]
    with pytest.raises(BuildError, match=r"^binding.cpp:\d+:\d+: .*uncommon"):
        load_jit(
            "radix", **RADIX | {"wrappers": wrong}, build_directory=tmp_path
        )
    # Nothing half made stays to be loaded the next time.
    assert not [*tmp_path.glob("*/*")]


def test_the_line_that_matters_of_a_compilers_output():
    long = (
        "In file included from a.cu\n/x/y/store.cu:3: error: no such thing\nend"
    )
    assert first_error(long) == "store.cu:3: error: no such thing"
    linker = (
        "ninja exited\nFAILED: a.so\n/usr/bin/ld: cannot find -lcudart\nld 1"
    )
    assert first_error(linker) == "ld: cannot find -lcudart"
    assert first_error("killed") == "killed"
    assert first_error("\n") == "the compiler says nothing"


def test_without_a_compiler_torch_works_and_one_line_says_so(no_compiler, said):
    x = torch.arange(9, dtype=torch.int32)
    for _ in range(3):
        assert fast_compare_key(x, x[:4]) == 4
    line = "torch does the work of a kernel: no C++ compiler (g++) is installed"
    assert said.messages == [line]
    with simulated_kernels():
        table = torch.randn(9, 4)
        assert torch.equal(indexing(table, x), table)
        to_k, to_v = torch.zeros(2, 9, 4)
        store_cache(to_k, to_v, x, table, table + 1)
    assert torch.equal(to_k, table) and torch.equal(to_v, table + 1)
    assert said.messages == [line] * 3
    with pytest.raises(BuildError, match="no C\\+\\+ compiler"):
        load_jit("radix", **RADIX)
    assert try_load_jit("radix", **RADIX) is None


def test_processes_that_start_together_all_get_a_library(tmp_path):
    code = (
        "from minisgl.kernel.utils import load_jit; import torch;"
        f"m = load_jit('radix', **{RADIX}, build_directory={str(tmp_path)!r});"
        "x = torch.arange(9).int();"
        "print(m.common_prefix(x.data_ptr(), x.data_ptr(), 9))"
    )
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": path},
        )
        for _ in range(3)
    ]
    answers = [process.communicate(timeout=120)[0] for process in started]
    assert answers == [b"9\n"] * 3
    assert [path.name for path in tmp_path.glob("*/*")] == ["radix.so"]


def test_a_cache_that_cannot_be_written_is_replaced(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    build_module.cache_folder.cache_clear()
    try:
        monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        monkeypatch.setattr("tempfile.tempdir", None)
        folder = build_module.cache_folder()
        assert folder.parent == tmp_path and folder.is_dir()
        build_module.cache_folder.cache_clear()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        wanted = tmp_path / "cache" / "minisgl" / "kernels"
        assert build_module.cache_folder() == wanted and wanted.is_dir()
    finally:
        build_module.cache_folder.cache_clear()


def test_a_gpus_library_comes_from_whoever_knows_nvcc(tmp_path, monkeypatch):
    made = load_jit("radix", **RADIX, build_directory=tmp_path)._library._name
    asked = []

    def loader(name):
        def build(**settings):
            asked.append((name, settings))
            return made

        return SimpleNamespace(build=build, load=build)

    monkeypatch.setattr(build_module, "_toolchain", lambda target: ["sm_90"])
    monkeypatch.setattr(build_module, "import_module", loader)
    for found, name in ((object(), "tvm_ffi.cpp"), (None, "torch.utils")):
        monkeypatch.setattr(build_module, "find_spec", lambda _, it=found: it)
        gpu = RADIX | {"target": "cuda", "build_directory": tmp_path / "gpu"}
        assert prefix(load_jit("radix", **gpu)) == 7
        who, settings = asked.pop()
        assert who.startswith(name) and settings["name"].startswith("radix_")
        assert settings["extra_include_paths"] == [str(build_module.CSRC)]
        assert settings.get("is_python_module", True) is (found is not None)
        (source,) = settings["sources"]
        assert '#include "radix.cpp"' in Path(source).read_text()


def test_what_a_gpus_loader_raises_is_one_line(tmp_path, monkeypatch):
    def loader(name):
        raise RuntimeError("ninja exited\n/x/binding.cu(3): error: no such x")

    monkeypatch.setattr(build_module, "_toolchain", lambda target: ["sm_90"])
    monkeypatch.setattr(build_module, "import_module", loader)
    gpu = RADIX | {"target": "cuda", "build_directory": tmp_path}
    with pytest.raises(
        BuildError, match=r"^binding\.cu\(3\): error: no such x$"
    ):
        load_jit("radix", **gpu)


def test_template_arguments_read_as_cpp():
    args = make_cpp_args(torch.int32, 512, True, torch.int64)
    assert str(args) == "int32_t, 512, 1, int64_t"
    assert KernelConfig(128, 2).template_args == "128, 2"


@pytest.mark.parametrize(
    "row, other, size",
    [
        ((64, 9, 512, 512), (128, 9, 512, 1024), 16),
        ((64, 9, 512, 512), (72, 9, 512, 512), 8),
        ((64, 9, 512, 512), (64, 9, 512, 516), 4),
        ((64, 9, 6, 6), (64, 9, 6, 18), 2),
        ((64, 9, 15, 15), (64, 9, 15, 15), 1),
        ((64, 1, 512, 0), (64, 9, 512, 512), 16),
    ],
)
def test_the_widest_word_that_divides_everything(row, other, size):
    assert word_size(Rows(*row), Rows(*other)) == size


def test_kernels_are_for_a_gpu_unless_simulated():
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert kernel_target(cpu) is None and kernel_target(cuda) == "cuda"
    with simulated_kernels():
        assert kernel_target(cpu) == "simulator"
        assert kernel_target(cuda) == "cuda"
    assert kernel_target(cpu) is None
