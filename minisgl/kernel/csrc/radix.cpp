// How many leading tokens two keys of the radix tree share.
#include <cstdint>
#include <cstring>

// x and y: addresses of `length` tokens each.
template <typename Token>
int64_t common_prefix(int64_t x, int64_t y, int64_t length) {
  const auto* one = reinterpret_cast<const Token*>(x);
  const auto* other = reinterpret_cast<const Token*>(y);
  // memcmp looks at 32 bytes and more at a time, but does not say where.
  constexpr int64_t kStep = 64;
  int64_t same = 0;
  while (same + kStep <= length &&
         std::memcmp(one + same, other + same, kStep * sizeof(Token)) == 0) {
    same += kStep;
  }
  while (same < length && one[same] == other[same]) ++same;
  return same;
}
