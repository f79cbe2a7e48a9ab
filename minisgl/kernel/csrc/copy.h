// A row of memory moved by the 32 lanes of a warp, neighbours by neighbours.
#pragma once

#include "device.h"

template <int kBytes>
struct Word;
template <>
struct Word<16> { using Type = uint4; };
template <>
struct Word<8> { using Type = uint2; };
template <>
struct Word<4> { using Type = uint32_t; };
template <>
struct Word<2> { using Type = uint16_t; };
template <>
struct Word<1> { using Type = uint8_t; };

// Words that a lane has asked for and not yet written: memory answers late, so
// several questions at once.
constexpr int kInFlight = 4;

// kBytes from `from` to `to`, both aligned to a word of kWord bytes.
template <int kBytes, int kWord>
__device__ __forceinline__ void copy_by_warp(char* to, const char* from) {
  using Type = typename Word<kWord>::Type;
  static_assert(kBytes % kWord == 0, "a row is whole words");
  constexpr int kWords = kBytes / kWord;
  auto* target = reinterpret_cast<Type*>(to);
  const auto* source = reinterpret_cast<const Type*>(from);
#pragma unroll
  for (int first = 0; first < kWords; first += kWarp * kInFlight) {
    Type held[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int word = first + i * kWarp + lane();
      if (word < kWords) held[i] = source[word];
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int word = first + i * kWarp + lane();
      if (word < kWords) target[word] = held[i];
    }
  }
}

// kBytes of zeros.
template <int kBytes, int kWord>
__device__ __forceinline__ void clear_by_warp(char* to) {
  using Type = typename Word<kWord>::Type;
  auto* target = reinterpret_cast<Type*>(to);
#pragma unroll
  for (int word = lane(); word < kBytes / kWord; word += kWarp) {
    target[word] = Type{};
  }
}
