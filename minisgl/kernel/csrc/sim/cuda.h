// As much of CUDA as the kernels use, for a CPU. Blocks run one after another,
// the threads of a block in turns: what is wrong without a barrier is wrong
// here too, and the same way each time.
#pragma once

#include <cstring>

#include "fiber.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
// One block at a time: what is static is the block's. As on a GPU nothing
// clears it in between.
#define __shared__ static

#define threadIdx (sim::block->current->thread)
#define blockIdx (sim::block->index)
#define blockDim (sim::block->size)
#define gridDim (sim::block->grid)

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

namespace sim {

constexpr int64_t kBadLaunch = 9;   // cudaErrorInvalidConfiguration
constexpr int64_t kNeverEnds = 702;  // cudaErrorLaunchTimeout

template <typename Kernel>
int64_t launch(int64_t blocks, int threads, const Kernel& kernel) {
  if (blocks < 1 || threads < 1 || threads > 1024) return kBadLaunch;
  const auto run = [](const void* one) { (*static_cast<const Kernel*>(one))(); };
  Block block({static_cast<unsigned>(blocks)},
              {static_cast<unsigned>(threads)}, run, &kernel);
  for (unsigned i = 0; i < block.grid.x; ++i) {
    if (!block.run({i})) return kNeverEnds;
  }
  return 0;
}

inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }

inline unsigned lane() { return threadIdx.x % 32; }

inline Warp& warp() { return block->warps[threadIdx.x / 32]; }

// Wait for the lanes of `mask`; the last warp of a block may have fewer.
inline void wait_warp(unsigned mask) {
  const unsigned there = min(32u, blockDim.x - threadIdx.x / 32 * 32);
  const unsigned lanes = there == 32 ? ~0u : (1u << there) - 1;
  block->wait(warp().barrier, __builtin_popcount(mask & lanes));
}

// Every lane shows its value, then reads that of lane `from`.
template <typename T>
T exchange(unsigned mask, T value, unsigned from) {
  static_assert(sizeof(T) <= sizeof(uint64_t), "at most 8 bytes");
  std::memcpy(&warp().values[lane()], &value, sizeof(T));
  wait_warp(mask);
  std::memcpy(&value, &warp().values[from % 32], sizeof(T));
  wait_warp(mask);
  return value;
}

}  // namespace sim

inline void __syncthreads() {
  sim::block->wait(sim::block->barrier, static_cast<int>(blockDim.x));
}

inline void __syncwarp(unsigned mask = ~0u) { sim::wait_warp(mask); }

template <typename T>
T __shfl_sync(unsigned mask, T value, int from) {
  return sim::exchange(mask, value, static_cast<unsigned>(from));
}

template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta) {
  const unsigned lane = sim::lane();
  return sim::exchange(mask, value, lane < delta ? lane : lane - delta);
}

template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta) {
  const unsigned lane = sim::lane();
  return sim::exchange(mask, value, lane + delta > 31 ? lane : lane + delta);
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits) {
  return sim::exchange(mask, value, sim::lane() ^ static_cast<unsigned>(bits));
}

// One thread runs at a time, so that this is as good as the real one.
template <typename T>
T atomicAdd(T* address, T value) {
  const T before = *address;
  *address += value;
  return before;
}
