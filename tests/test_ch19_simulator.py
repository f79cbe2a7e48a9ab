"""The simulated GPU: what CUDA promises holds, and what it does not, does not."""

import pytest
import torch

from minisgl.kernel.compile import Library, binding, compile_host

KERNELS = r"""
#include "device.h"

__global__ void number(int64_t* out) {
  out[blockIdx.x * blockDim.x + threadIdx.x] =
      blockIdx.x * 10000 + threadIdx.x * 10 + gridDim.x;
}

int64_t run_number(int64_t out, int64_t blocks, int64_t threads) {
  return launch(number, blocks, threads, 0, pointer<int64_t>(out));
}

// The sum of a block: warps by shuffles, the warps' sums through shared memory.
template <bool kBarrier>
__global__ void sum(const int64_t* in, int64_t* out) {
  __shared__ int64_t sums[32];
  int64_t value = in[blockIdx.x * blockDim.x + threadIdx.x];
  for (int step = 16; step > 0; step /= 2)
    value += __shfl_down_sync(~0u, value, step);
  if (lane() == 0) sums[threadIdx.x / 32] = value;
  if (kBarrier) __syncthreads();
  if (threadIdx.x == 0) {
    int64_t total = 0;
    for (unsigned i = 0; i < blockDim.x / 32; ++i) total += sums[i];
    out[blockIdx.x] = total;
  }
  __syncthreads();
}

template <bool kBarrier>
int64_t run_sum(int64_t in, int64_t out, int64_t blocks, int64_t threads) {
  return launch(sum<kBarrier>, blocks, threads, 0, pointer<const int64_t>(in),
                pointer<int64_t>(out));
}

// Each lane the sum of its own and all lower lanes' values.
__global__ void scan(int32_t* values) {
  int32_t value = values[threadIdx.x];
  for (int step = 1; step < 32; step *= 2) {
    const int32_t lower = __shfl_up_sync(~0u, value, step);
    if (lane() >= step) value += lower;
  }
  values[threadIdx.x] = value;
}

int64_t run_scan(int64_t values, int64_t threads) {
  return launch(scan, 1, threads, 0, pointer<int32_t>(values));
}

__global__ void from_lane(float* values, int source, int bits) {
  const float value = values[threadIdx.x];
  const float one = __shfl_sync(~0u, value, source);
  const float other = __shfl_xor_sync(~0u, value, bits);
  __syncwarp();
  values[threadIdx.x] = 100 * one + other;
}

int64_t run_from_lane(int64_t values, int64_t source, int64_t bits) {
  return launch(from_lane, 1, 64, 0, pointer<float>(values),
                static_cast<int>(source), static_cast<int>(bits));
}

__global__ void half_waits(int64_t* out) {
  if (threadIdx.x % 2) __syncthreads();
  out[threadIdx.x] = 1;
}

int64_t run_half_waits(int64_t out) {
  return launch(half_waits, 1, 64, 0, pointer<int64_t>(out));
}

__global__ void count(int* total) { atomicAdd(total, 2); }

int64_t run_count(int64_t total, int64_t blocks, int64_t threads) {
  return launch(count, blocks, threads, 0, pointer<int>(total));
}

// Wrong on purpose: who comes first is not said.
__global__ void first(int64_t* out, int* taken) {
  if (atomicAdd(taken + blockIdx.x, 1) == 0) out[blockIdx.x] = threadIdx.x;
}

int64_t run_first(int64_t out, int64_t taken, int64_t blocks) {
  return launch(first, blocks, 256, 0, pointer<int64_t>(out),
                pointer<int>(taken));
}
"""
NAMES = ["number", "scan", "from_lane", "half_waits", "count", "first"]
LAUNCH_ERROR, NEVER_ENDS = 9, 702


@pytest.fixture(scope="module")
def sim(tmp_path_factory):
    wrappers = [(name, f"run_{name}") for name in NAMES]
    wrappers += [("sum", "run_sum<true>"), ("racy_sum", "run_sum<false>")]
    source = KERNELS + binding([], wrappers)
    folder = tmp_path_factory.mktemp("sim")
    return Library(compile_host("kernels", source, folder))


def test_every_thread_of_every_block_runs_once_and_knows_who_it_is(sim):
    out = torch.full((5 * 96,), -1)
    assert sim.number(out.data_ptr(), 5, 96) == 0
    block, thread = torch.arange(5)[:, None], torch.arange(96)
    assert torch.equal(out.view(5, 96), block * 10000 + thread * 10 + 5)


@pytest.mark.parametrize("threads", [32, 128, 1024])
def test_shared_memory_and_a_barrier_make_a_sum(sim, threads):
    values = torch.randint(-99, 99, (7, threads))
    out = torch.zeros(7, dtype=torch.int64)
    assert sim.sum(values.data_ptr(), out.data_ptr(), 7, threads) == 0
    assert torch.equal(out, values.sum(-1))


def test_a_forgotten_barrier_shows_and_shows_the_same_each_time(sim):
    values = torch.randint(1, 99, (7, 256))
    runs = []
    for _ in range(2):
        out = torch.zeros(7, dtype=torch.int64)
        assert sim.racy_sum(values.data_ptr(), out.data_ptr(), 7, 256) == 0
        runs.append(out)
    assert not torch.equal(runs[0], values.sum(-1))
    assert torch.equal(runs[0][1:], runs[1][1:])


@pytest.mark.parametrize("threads", [32, 64, 40, 7])
def test_a_warp_scan_also_in_a_warp_that_is_not_full(sim, threads):
    values = torch.randint(-9, 9, (threads,), dtype=torch.int32)
    wanted = torch.cat([part.cumsum(0) for part in values.split(32)])
    assert sim.scan(values.data_ptr(), threads) == 0
    assert torch.equal(values, wanted.to(torch.int32))


def test_shuffles_read_the_lane_they_name(sim):
    before = torch.randn(2, 32)
    after = before.clone()
    assert sim.from_lane(after.data_ptr(), 5, 3) == 0
    crossed = before[:, torch.arange(32) ^ 3]
    assert torch.equal(after, 100 * before[:, 5:6] + crossed)


def test_a_barrier_that_some_never_reach_is_an_error_not_a_hang(sim):
    out = torch.zeros(64, dtype=torch.int64)
    assert sim.half_waits(out.data_ptr()) == NEVER_ENDS
    # The next launch starts afresh.
    assert sim.number(torch.zeros(64).long().data_ptr(), 1, 64) == 0


def test_atomic_additions_all_count(sim):
    total = torch.zeros(1, dtype=torch.int32)
    assert sim.count(total.data_ptr(), 3, 200) == 0
    assert total.item() == 2 * 3 * 200


def test_no_thread_is_always_first(sim):
    out = torch.zeros(20, dtype=torch.int64)
    taken = torch.zeros(20, dtype=torch.int32)
    assert sim.first(out.data_ptr(), taken.data_ptr(), 20) == 0
    assert taken.tolist() == [256] * 20
    assert len(out.unique()) > 10


def test_a_launch_no_gpu_would_take_is_refused(sim):
    out = torch.zeros(2048, dtype=torch.int64)
    assert sim.number(out.data_ptr(), 1, 1025) == LAUNCH_ERROR
    assert sim.number(out.data_ptr(), 1, 0) == LAUNCH_ERROR
    assert not out.any()
    # Nothing to do is no error.
    assert sim.number(out.data_ptr(), 0, 32) == 0


def test_a_call_with_too_few_arguments_runs_nothing(sim):
    out = torch.zeros(64, dtype=torch.int64)
    assert sim.number(out.data_ptr(), 1) == -1
    assert not out.any()
