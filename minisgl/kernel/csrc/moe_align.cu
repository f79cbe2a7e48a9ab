// Tokens sorted by expert, each expert's share padded to whole blocks.
#include "device.h"

// One thread an expert in the middle part, so at most so many of both.
constexpr int kThreads = 1024;

// The sum over all threads with a lower number; `total` is that of all.
__device__ __forceinline__ int sum_of_lower(int value, int* warp_sums,
                                            int* total) {
  const int warp = threadIdx.x / kWarp;
  int sum = value;
  for (int step = 1; step < kWarp; step *= 2) {
    const int lower = __shfl_up_sync(~0u, sum, step);
    if (lane() >= step) sum += lower;
  }
  if (lane() == kWarp - 1) warp_sums[warp] = sum;
  __syncthreads();
  int before = 0, all = 0;
  for (int i = 0; i < kThreads / kWarp; ++i) {
    if (i < warp) before += warp_sums[i];
    all += warp_sums[i];
  }
  *total = all;
  return before + sum - value;
}

// A single block: all experts count together, and that takes a barrier.
//
// ids: the expert of each of `count` (token, choice) pairs. sorted: room for
// every pair and padding; a place without a pair gets `count`. block_experts:
// the expert of each block of `sorted`.
__global__ void __launch_bounds__(kThreads, 1)
    align(const int32_t* __restrict__ ids, int64_t count, int block_size,
          int32_t* __restrict__ sorted, int64_t room,
          int32_t* __restrict__ block_experts, int32_t* __restrict__ padded) {
  __shared__ int place[kThreads];  // counts first, then where the next one goes
  __shared__ int warp_sums[kThreads / kWarp];
  place[threadIdx.x] = 0;
  __syncthreads();
  for (int64_t i = threadIdx.x; i < count; i += kThreads) {
    atomicAdd(&place[ids[i]], 1);
  }
  __syncthreads();

  const int blocks = (place[threadIdx.x] + block_size - 1) / block_size;
  int total;
  const int first = sum_of_lower(blocks, warp_sums, &total);
  for (int i = first; i < first + blocks; ++i) block_experts[i] = threadIdx.x;
  for (int64_t i = total + threadIdx.x; i < room / block_size; i += kThreads) {
    block_experts[i] = 0;
  }
  place[threadIdx.x] = first * block_size;
  if (threadIdx.x == 0) *padded = total * block_size;
  for (int64_t i = threadIdx.x; i < room; i += kThreads) {
    sorted[i] = static_cast<int32_t>(count);
  }
  __syncthreads();

  for (int64_t i = threadIdx.x; i < count; i += kThreads) {
    sorted[atomicAdd(&place[ids[i]], 1)] = static_cast<int32_t>(i);
  }
}

// Addresses, with the length of what they lead to; then the stream.
int64_t align_blocks(int64_t ids, int64_t count, int64_t block_size,
                     int64_t sorted, int64_t room, int64_t block_experts,
                     int64_t padded, int64_t stream) {
  return launch(align, 1, kThreads, stream, pointer<const int32_t>(ids), count,
                static_cast<int>(block_size), pointer<int32_t>(sorted), room,
                pointer<int32_t>(block_experts), pointer<int32_t>(padded));
}
