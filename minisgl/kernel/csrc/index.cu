// Rows of a table, chosen by index: an embedding.
#include "copy.h"

// kSplits warps a token, so that few long rows still occupy the device. The
// table holds the rows of the ids first ... last - 1; any other id gives zeros.
template <typename Index, int kRow, int kWord, int kSplits, int kThreads,
          int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks)
    index_rows(const char* __restrict__ table,
               const Index* __restrict__ indices, char* __restrict__ output,
               int64_t tokens, int64_t table_stride, int64_t first,
               int64_t last) {
  constexpr int kPart = kRow / kSplits;
  const int64_t token = global_warp() / kSplits;
  const int64_t part = global_warp() % kSplits * kPart;
  if (token >= tokens) return;
  const int64_t id = indices[token];
  char* target = output + token * kRow + part;
  if (id < first || id >= last) {
    clear_by_warp<kPart, kWord>(target);
  } else {
    const char* row = table + (id - first) * table_stride;
    copy_by_warp<kPart, kWord>(target, row + part);
  }
}

// Addresses, the number of tokens, the table's stride in bytes, the ids it
// holds, the stream.
template <typename Index, int kRow, int kWord, int kSplits, int kThreads,
          int kBlocks>
int64_t lookup(int64_t table, int64_t indices, int64_t output, int64_t tokens,
               int64_t table_stride, int64_t first, int64_t last,
               int64_t stream) {
  return launch(index_rows<Index, kRow, kWord, kSplits, kThreads, kBlocks>,
                div_ceil(tokens * kSplits, kThreads / kWarp), kThreads, stream,
                pointer<const char>(table), pointer<const Index>(indices),
                pointer<char>(output), tokens, table_stride, first, last);
}
