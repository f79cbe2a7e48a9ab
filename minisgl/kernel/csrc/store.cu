// The keys and values of new tokens into their slots of the pool.
#include "copy.h"

// One warp a token. A slot outside the pool is skipped, never written.
template <typename Index, int kRow, int kWord, int kThreads, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks)
    store_rows(char* __restrict__ k_cache, char* __restrict__ v_cache,
               const Index* __restrict__ indices, const char* __restrict__ k,
               const char* __restrict__ v, int64_t tokens, int64_t slots,
               int64_t cache_stride, int64_t k_stride, int64_t v_stride) {
  const int64_t token = global_warp();
  if (token >= tokens) return;
  const int64_t slot = indices[token];
  if (slot < 0 || slot >= slots) return;
  const int64_t place = slot * cache_stride;
  copy_by_warp<kRow, kWord>(k_cache + place, k + token * k_stride);
  copy_by_warp<kRow, kWord>(v_cache + place, v + token * v_stride);
}

// Addresses, then counts, then strides in bytes, then the stream.
template <typename Index, int kRow, int kWord, int kThreads, int kBlocks>
int64_t store(int64_t k_cache, int64_t v_cache, int64_t indices, int64_t k,
              int64_t v, int64_t tokens, int64_t slots, int64_t cache_stride,
              int64_t k_stride, int64_t v_stride, int64_t stream) {
  return launch(store_rows<Index, kRow, kWord, kThreads, kBlocks>,
                div_ceil(tokens, kThreads / kWarp), kThreads, stream,
                pointer<char>(k_cache), pointer<char>(v_cache),
                pointer<const Index>(indices), pointer<const char>(k),
                pointer<const char>(v), tokens, slots, cache_stride, k_stride,
                v_stride);
}
