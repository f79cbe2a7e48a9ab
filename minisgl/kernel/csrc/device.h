// What every kernel needs: CUDA's words, and one way to launch.
//
// nvcc finds the real ones. Any other compiler gets the simulator, so that the
// same source runs on a CPU.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#include <cuda_runtime.h>
#else
#include "sim/cuda.h"
#endif

constexpr int kWarp = 32;

__device__ __forceinline__ int lane() { return threadIdx.x % kWarp; }

// The number of this thread's warp among all warps of the grid.
__device__ __forceinline__ int64_t global_warp() {
  const int warps = blockDim.x / kWarp;
  return static_cast<int64_t>(blockIdx.x) * warps + threadIdx.x / kWarp;
}

inline int64_t div_ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Start `blocks` blocks of `threads` threads on a stream; 0, or CUDA's number
// of the error. A grid without blocks is no error here: there is nothing to do.
template <typename... Params, typename... Args>
int64_t launch(void (*kernel)(Params...), int64_t blocks, int threads,
               int64_t stream, Args... args) {
  if (blocks == 0) return 0;
#ifdef __CUDACC__
  kernel<<<static_cast<unsigned>(blocks), threads, 0,
           reinterpret_cast<cudaStream_t>(stream)>>>(args...);
  return cudaGetLastError();
#else
  (void)stream;
  return sim::launch(blocks, threads, [=] { kernel(args...); });
#endif
}

template <typename T>
T* pointer(int64_t address) {
  return reinterpret_cast<T*>(address);
}
