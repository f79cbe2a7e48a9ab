// A function of 64-bit integers, called with an array of them.
#pragma once

#include <cstdint>
#include <utility>

template <typename... Params, std::size_t... kPlaces>
int64_t spread(int64_t (*function)(Params...), const int64_t* values,
               std::index_sequence<kPlaces...>) {
  return function(values[kPlaces]...);
}

// -1 when `count` is not the number of its parameters.
template <typename... Params>
int64_t call(int64_t (*function)(Params...), const int64_t* values,
             int64_t count) {
  if (count != sizeof...(Params)) return -1;
  return spread(function, values, std::index_sequence_for<Params...>{});
}
