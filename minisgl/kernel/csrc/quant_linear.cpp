// y = x W^T on a CPU, with W in 8 or 4 bits and a scale for each group of it.
//
// With few rows of x, the time goes into fetching W. So W stays as small as it
// is stored until it is in a register; sums are in float32.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

// Vectors of the compilers GCC and Clang, as wide as the machine's registers.
#ifdef __AVX512F__
constexpr int kLanes = 16;
#else
constexpr int kLanes = 8;
#endif
using Floats = float __attribute__((vector_size(4 * kLanes)));
using Words = int32_t __attribute__((vector_size(4 * kLanes)));
using Bytes = int8_t __attribute__((vector_size(kLanes)));

// How far ahead of the sums memory is asked for W: the next rows begin
// elsewhere, which it would not foresee.
constexpr int64_t kAhead = 2048;

inline Bytes fetch(const int8_t* from) {
  Bytes found;
  std::memcpy(&found, from, sizeof found);
  return found;
}

// In one instruction, which a compiler does not always find by itself.
inline Words widen(Bytes bytes) {
#if defined(__AVX512F__)
  return (Words)_mm512_cvtepi8_epi32((__m128i)bytes);
#elif defined(__AVX2__)
  return (Words)_mm256_cvtepi8_epi32(_mm_set1_epi64x((int64_t)bytes));
#else
  return __builtin_convertvector(bytes, Words);
#endif
}

inline Floats floats(Words words) {
  return __builtin_convertvector(words, Floats);
}

// Formats. 32 numbers are decoded at once: kParts registers, from kBytes bytes.
struct Int8 {
  static constexpr int kParts = 32 / kLanes, kBytes = 32;
  static void decode(const int8_t* from, Floats* to) {
#pragma GCC unroll 4
    for (int h = 0; h < kParts; ++h) {
      to[h] = floats(widen(fetch(from + h * kLanes)));
    }
  }
};

// float8_e4m3: sign, 4 bits of exponent, 3 of mantissa. Put where a float32 has
// them, the exponent is too small by 127 - 7, whether the number is normal or
// not. A NaN would not remain one, but no weight is.
struct E4M3 {
  static constexpr int kParts = 32 / kLanes, kBytes = 32;
  static void decode(const int8_t* from, Floats* to) {
#pragma GCC unroll 4
    for (int h = 0; h < kParts; ++h) {
      const Words bits = widen(fetch(from + h * kLanes));
      const Words moved = (bits & INT32_MIN) | ((bits & 0x7f) << 20);
      to[h] = (Floats)moved * 0x1p120f;
    }
  }
};

// Two a byte, and 8 too large. 16 bytes are 32 numbers: their low halves come
// first, then their high ones.
struct Int4 {
  static constexpr int kParts = 32 / kLanes, kBytes = 16;
  // Of each byte the lower half.
  static Floats number(Bytes halves) {
#ifdef __AVX512F__  // There are as many numbers as lanes: looked up at once.
    const Floats all = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
    return (Floats)_mm512_permutexvar_ps((__m512i)widen(halves), (__m512)all);
#else
    return floats(widen((halves & 15) - 8));
#endif
  }
  static void decode(const int8_t* from, Floats* to) {
#pragma GCC unroll 4
    for (int h = 0; h < kParts / 2; ++h) {
      const Bytes both = fetch(from + h * kLanes);
      to[h] = number(both);
      to[h + kParts / 2] = number(both >> 4);
    }
  }
};

struct Float32 {
  using Kind = float;
  static float read(float x) { return x; }
  static float write(float x) { return x; }
};

struct BFloat16 {
  using Kind = uint16_t;
  static float read(uint16_t x) {
    const uint32_t bits = static_cast<uint32_t>(x) << 16;
    float found;
    std::memcpy(&found, &bits, sizeof found);
    return found;
  }
  static uint16_t write(float x) {  // to the nearest, ties to even
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    if (x != x) return static_cast<uint16_t>(bits >> 16 | 0x40);
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
};

// By halves: one addition need not wait for each of the others.
inline float total(Floats lanes) {
  float sums[kLanes];
  std::memcpy(sums, &lanes, sizeof sums);
  for (int half = kLanes / 2; half > 0; half /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

// What all threads read; `width` and `group` are multiples of a chunk.
struct Problem {
  const float* x;
  const int8_t* w;
  const float* scale;
  int64_t rows, outs, width, group, groups;
};

// sums[row][out] of kRows rows of x by kOuts of W. Several sums at once, since
// one addition must wait for the one before.
template <typename Format, int kRows, int kOuts>
void tile(const Problem& p, int64_t row, int64_t out, float* sums) {
  constexpr int kChunk = 32;
  const int64_t bytes = p.width / kChunk * Format::kBytes;
  Floats all[kRows][kOuts] = {};
  for (int64_t g = 0; g < p.groups; ++g) {
    Floats part[kRows][kOuts] = {};
    const int64_t end = std::min((g + 1) * p.group, p.width);
    for (int64_t k = g * p.group; k < end; k += kChunk) {
#pragma GCC unroll 4
      for (int o = 0; o < kOuts; ++o) {
        Floats w[Format::kParts];
        const int8_t* from =
            p.w + (out + o) * bytes + k / kChunk * Format::kBytes;
        __builtin_prefetch(from + kAhead);
        Format::decode(from, w);
#pragma GCC unroll 4
        for (int h = 0; h < Format::kParts; ++h) {
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r) {
            Floats x;
            std::memcpy(&x, p.x + (row + r) * p.width + k + h * kLanes, sizeof x);
            part[r][o] += x * w[h];
          }
        }
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int o = 0; o < kOuts; ++o) {
        all[r][o] += part[r][o] * p.scale[(out + o) * p.groups + g];
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int o = 0; o < kOuts; ++o) sums[r * kOuts + o] = total(all[r][o]);
  }
}

template <typename Format, typename Number, int kRows, int kOuts>
void write_tile(const Problem& p, int64_t row, int64_t out,
                typename Number::Kind* y) {
  float sums[kRows * kOuts];
  tile<Format, kRows, kOuts>(p, row, out, sums);
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int o = 0; o < kOuts; ++o) {
      y[(row + r) * p.outs + out + o] = Number::write(sums[r * kOuts + o]);
    }
  }
}

template <typename Format, typename Number, int kOuts>
void columns(const Problem& p, int64_t out, typename Number::Kind* y) {
  int64_t row = 0;
  for (; row + 4 <= p.rows; row += 4)
    write_tile<Format, Number, 4, kOuts>(p, row, out, y);
  for (; row < p.rows; ++row)
    write_tile<Format, Number, 1, kOuts>(p, row, out, y);
}

// x [rows, width] and y [rows, outs] of Number, w [outs, width] of Format,
// scale [outs, groups] float32, one for `group` columns. Returns 0.
template <typename Format, typename Number>
int64_t quant_linear(int64_t x, int64_t w, int64_t scale, int64_t y,
                     int64_t rows, int64_t outs, int64_t width, int64_t group,
                     int64_t groups) {
  using Kind = typename Number::Kind;
  static thread_local std::vector<float> wide;
  wide.resize(rows * width);
  const auto* given = reinterpret_cast<const Kind*>(x);
  std::transform(given, given + rows * width, wide.begin(), Number::read);
  const Problem p{wide.data(), reinterpret_cast<const int8_t*>(w),
                  reinterpret_cast<const float*>(scale), rows, outs, width,
                  group, groups};
  auto* result = reinterpret_cast<Kind*>(y);
  const int64_t blocks = outs / 4;
#pragma omp parallel for schedule(static)
  for (int64_t block = 0; block < blocks; ++block) {
    columns<Format, Number, 4>(p, 4 * block, result);
  }
  for (int64_t out = 4 * blocks; out < outs; ++out) {
    columns<Format, Number, 1>(p, out, result);
  }
  return 0;
}
