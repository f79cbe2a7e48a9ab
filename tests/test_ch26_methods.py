"""Weights in few bits: what becomes of the numbers, and of products with them."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from minisgl.kernel import quant_linear as kernel_module
from minisgl.kernel.quant_linear import (
    dequantize,
    pack_int4,
    quant_linear,
    quant_linear_torch,
    unpack_int4,
)
from minisgl.layers import LinearReplicated
from minisgl.quant import QuantConfig, create_quant_method, fp8
from minisgl.quant.fp8 import quantize_rows, scaled_product

FORMATS = ["fp8", "int8", "int4"]
E4M3 = torch.float8_e4m3fn


def method_of(format, group_size=None):
    if group_size is None:
        group_size = 32 if format == "int4" else 0
    return create_quant_method(QuantConfig(format, group_size))


def there_and_back(method, weight):
    """The weight that is meant after it has been quantised."""
    values, scale = method.quantize(weight)
    return dequantize(values, scale, method._group_size(weight.shape[1]))


def uneven(rows=24, columns=96, seed=0):
    """A weight whose rows differ in size by up to a factor of a million."""
    make = torch.Generator().manual_seed(seed)
    sizes = 10.0 ** torch.linspace(-4, 2, rows).unsqueeze(1)
    return sizes * torch.randn(rows, columns, generator=make)


@pytest.mark.parametrize("format", FORMATS)
def test_no_weight_moves_by_more_than_half_a_step(format):
    method, weight = method_of(format), uneven()
    found = there_and_back(method, weight)
    groups = weight.view(24, -1, method._group_size(96))
    largest = groups.abs().amax(2, keepdim=True).expand_as(groups)
    if format == "fp8":
        # Half of a step of 1/8, below the least normal number half of 2^-9.
        step = (groups.abs() / 16).maximum(largest / 448 * 2**-10)
    else:
        # Half a step; one where the range ends on the short side.
        step = largest / (128 if format == "int8" else 8)
        at_end = groups * groups.gather(2, groups.abs().argmax(2, True)) < 0
        step = torch.where(at_end, step, step / 2)
    moved = (found.view_as(groups) - groups).abs()
    assert (moved <= step * 1.001).all()


@pytest.mark.parametrize("format", FORMATS)
def test_every_row_has_its_own_scale(format):
    weight = uneven()
    found = there_and_back(method_of(format), weight)
    error = (found - weight).norm(dim=1) / weight.norm(dim=1)
    limit = {"fp8": 0.04, "int8": 0.02, "int4": 0.15}[format]
    assert error.max() < limit, error


@pytest.mark.parametrize("format", FORMATS)
def test_zeros_remain_zeros(format):
    weight = uneven()
    weight[3] = 0
    weight[5, :32] = 0
    found = there_and_back(method_of(format), weight)
    assert found.isfinite().all()
    assert (found[3] == 0).all() and (found[5, :32] == 0).all()


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("format", "low"), [("int8", -128), ("int4", -8)])
def test_what_are_integers_already_is_kept_exactly(format, low, sign):
    make = torch.Generator().manual_seed(1)
    whole = torch.randint(low, -low, (16, 64), generator=make).float()
    whole[:, ::32] = low
    weight = sign * 0.037 * whole
    found = there_and_back(method_of(format, 32), weight)
    torch.testing.assert_close(found, weight, rtol=1e-6, atol=0)


def test_four_bits_are_packed_two_a_byte():
    make = torch.Generator().manual_seed(2)
    values = torch.randint(-8, 8, (5, 96), generator=make, dtype=torch.int8)
    packed = pack_int4(values)
    assert packed.dtype == torch.uint8 and packed.shape == (5, 48)
    assert torch.equal(unpack_int4(packed), values)
    low, high = int(values[0, 0]) + 8, int(values[0, 16]) + 8
    assert int(packed[0, 0]) == low | high << 4


def some(format, rows, outs, columns, group, dtype):
    make = torch.Generator().manual_seed(3)
    x = torch.randn(rows, columns, generator=make).to(dtype)
    if format == "int4":
        values = torch.randint(
            -8, 8, (outs, columns), generator=make, dtype=torch.int8
        )
        values = pack_int4(values)
    else:
        values = (80 * torch.randn(outs, columns, generator=make)).clamp(
            -127, 127
        )
        values = values.to(E4M3 if format == "fp8" else torch.int8)
    groups = -(-columns // group)
    scale = torch.rand(outs, groups, generator=make) - 0.3
    return x, values, scale


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    ("outs", "columns", "group"),
    [(1, 32, 32), (51, 96, 32), (8, 576, 128), (7, 576, 576), (130, 64, 64)],
)
def test_the_kernel_is_the_product(format, outs, columns, group, dtype):
    assert kernel_module._kernel_for(
        "cpu",
        dtype,
        *(some(format, 1, 1, 32, 32, dtype)[1].dtype, columns, group),
    ), "there is a compiler here"
    for rows in (1, 3, 4, 9, 48):
        x, values, scale = some(format, rows, outs, columns, group, dtype)
        found = quant_linear(x, values, scale, group)
        exact = F.linear(x.float(), dequantize(values, scale, group))
        limit = 2e-6 if dtype == torch.float32 else 5e-3
        assert found.dtype == dtype and found.shape == (rows, outs)
        error = (found.float() - exact).abs().max() / exact.abs().max()
        assert error < limit, (rows, float(error))


def test_the_kernel_decodes_every_number_of_float8():
    codes = torch.arange(256, dtype=torch.uint8)
    codes = codes[(codes & 127) != 127]
    numbers = codes.view(E4M3)
    weight = torch.zeros(len(codes), 32, dtype=E4M3)
    weight[:, 5] = numbers
    x = torch.zeros(1, 32)
    x[0, 5] = 1.0
    found = quant_linear(x, weight, torch.ones(len(codes), 1), 32)
    assert torch.equal(found[0], numbers.float())


@pytest.mark.parametrize("capability", ["AVX2", "DEFAULT"])
@pytest.mark.parametrize("format", FORMATS)
def test_the_kernel_for_older_machines(monkeypatch, format, capability):
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        pytest.skip("this is one")
    x, values, scale = some(format, 5, 9, 96, 32, torch.bfloat16)
    expected = quant_linear(x, values, scale, 32)
    monkeypatch.setattr(
        torch.backends.cpu, "get_cpu_capability", lambda: capability
    )
    module = kernel_module._load_module.__wrapped__(values.dtype, x.dtype)
    found = torch.empty_like(expected)
    pointers = [t.data_ptr() for t in (x, values, scale, found)]
    module.quant_linear(*pointers, 5, 9, 96, 32, 3)
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("format", FORMATS)
def test_without_a_compiler_torch_computes(monkeypatch, format):
    x, values, scale = some(format, 3, 16, 64, 32, torch.float32)
    expected = quant_linear(x, values, scale, 32)
    monkeypatch.setattr(kernel_module, "_kernel_for", lambda *args: None)
    found = quant_linear(x, values, scale, 32)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)
    assert torch.equal(found, quant_linear_torch(x, values, scale, 32))


@pytest.mark.parametrize(("columns", "group"), [(50, 50), (96, 16), (80, 32)])
@pytest.mark.parametrize("format", ["fp8", "int8"])
def test_odd_rows_and_groups_are_left_to_torch(format, columns, group):
    x, values, scale = some(format, 2, 6, columns, group, torch.float32)
    exact = F.linear(x, dequantize(values, scale, group))
    assert torch.equal(quant_linear(x, values, scale, group), exact)


@pytest.mark.parametrize("format", FORMATS)
def test_a_linear_with_a_bias(format):
    op = LinearReplicated(64, 48, has_bias=True)
    make = torch.Generator().manual_seed(4)
    weight = torch.randn(48, 64, generator=make)
    op.bias = torch.randn(48, generator=make)
    method = method_of(format)
    method.prepare(op)
    shapes = op.weight.shape, op.weight_scale.shape
    op.weight, op.weight_scale = method.quantize(weight)
    assert shapes == (op.weight.shape, op.weight_scale.shape)
    x = torch.randn(2, 64, generator=make)
    meant = dequantize(op.weight, op.weight_scale, method._group_size(64))
    expected = F.linear(x, meant, op.bias)
    torch.testing.assert_close(op.forward(x), expected, rtol=1e-5, atol=1e-5)


def test_rows_become_float8_each_with_its_scale():
    x = uneven(9, 160, seed=5).bfloat16()
    x[4] = 0
    rows, scale = quantize_rows(x)
    assert rows.dtype == E4M3 and scale.shape == (9, 1)
    error = (rows.float() * scale - x.float()).norm(dim=1)
    assert (error <= 0.04 * x.float().norm(dim=1)).all()


def test_a_product_with_both_factors_in_float8():
    """What a Hopper computes; torch can compute it on a CPU, slowly."""
    x = torch.randn(
        5, 64, generator=torch.Generator().manual_seed(6)
    ).bfloat16()
    weight, scale = method_of("fp8").quantize(uneven(48, 64, seed=7))
    rows, row_scale = quantize_rows(x)
    exact = (rows.float() * row_scale) @ (weight.float() * scale).T
    found = scaled_product(x, weight, scale)
    assert found.dtype == torch.bfloat16
    error = (found.float() - exact).norm(dim=0) / exact.norm(dim=0)
    assert error.max() < 5e-3
    plain = x.float() @ (weight.float() * scale).T
    both = (found.float() - plain).norm(dim=0) / plain.norm(dim=0)
    assert 5e-3 < both.max() < 0.1, "float8 activations cost something"


@pytest.mark.parametrize(
    ("dtype", "outs", "columns", "groups", "hopper", "fits"),
    [
        (torch.bfloat16, 48, 64, 1, True, True),
        (torch.float16, 48, 64, 1, True, False),
        (torch.bfloat16, 48, 64, 2, True, False),
        (torch.bfloat16, 40, 64, 1, True, False),
        (torch.bfloat16, 48, 72, 1, True, False),
        (torch.bfloat16, 48, 64, 1, False, False),
    ],
)
def test_both_factors_are_in_float8_only_where_a_gpu_takes_them(
    monkeypatch, dtype, outs, columns, groups, hopper, fits
):
    """Anything else is computed with the weights as floats, not refused by it."""
    monkeypatch.setattr(fp8, "is_sm90_supported", lambda: hopper)
    weight, scale = torch.zeros(outs, columns), torch.ones(outs, groups)
    on_gpu, on_cpu = (
        SimpleNamespace(dtype=dtype, is_cuda=place) for place in (True, False)
    )
    assert fp8._has_tensor_cores(on_gpu, weight, scale) == fits
    assert not fp8._has_tensor_cores(on_cpu, weight, scale)


def test_programs_that_share_a_multiprocessor_share_its_memory(monkeypatch):
    """Those that would have to wait for one another take less of it."""
    gpu = SimpleNamespace(
        shared_memory_per_multiprocessor=228 << 10, multi_processor_count=132
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)

    def is_alone(programs, size):
        return fp8._is_alone.__wrapped__(
            torch.device("cuda"), programs, size << 10
        )

    assert is_alone(132, 227)
    assert not is_alone(133, 227)
    assert not is_alone(132, 228), "the system keeps a part"


def test_the_kernels_in_tritons_interpreter():
    if find_spec("triton") is None:
        pytest.skip("triton is not installed")
    root = str(Path(kernel_module.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, str(Path(root) / "tests" / "float8.py")],
        capture_output=True,
        text=True,
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": root},
        timeout=120,
    )
    assert done.stdout.strip() == "equal", done.stderr[-2000:]
