// Prints the shared-memory descriptors that CuTe makes for whole tiles: one line per tile (with a checksum of the byte
// offset of every element), then one per part of it that is one operand of an instruction. Knows nothing of ours.
#pragma once
#define CUTE_CVTA_GENERIC_TO_SHARED_ACTIVATED 1
#include <cstddef>
static inline size_t __cvta_generic_to_shared(void const* p) { return reinterpret_cast<size_t>(p); }

#include <cstdio>
#include <cute/atom/mma_traits_sm100.hpp>
#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cute/atom/mma_traits_sm90_gmma_sparse.hpp>
#include <cutlass/version.h>
#include <utility>

namespace oracle {
using namespace cute;
namespace packed = cutlass::detail;

enum Mode { none, b32, b64, b128, b128_atom32 };
inline char const* const mode_names[] = {"none", "32B", "64B", "128B", "128B_atom32B"};

template <class T> struct Name;
#define SMALTI_NAME(T, text) template <> struct Name<T> { static constexpr char const* value = text; }
SMALTI_NAME(half_t, "f16");
SMALTI_NAME(bfloat16_t, "bf16");
SMALTI_NAME(tfloat32_t, "tf32");
SMALTI_NAME(int8_t, "s8");
SMALTI_NAME(uint8_t, "u8");
SMALTI_NAME(float_e4m3_t, "e4m3");
SMALTI_NAME(float_e5m2_t, "e5m2");
SMALTI_NAME(float_e2m1_t, "e2m1x2");

template <class T, bool MN, Mode mode> constexpr auto dense_atom() {
  if constexpr (MN) {
    if constexpr (mode == none) return UMMA::Layout_MN_INTER_Atom<T>{};
    else if constexpr (mode == b32) return UMMA::Layout_MN_SW32_Atom<T>{};
    else if constexpr (mode == b64) return UMMA::Layout_MN_SW64_Atom<T>{};
    else if constexpr (mode == b128) return UMMA::Layout_MN_SW128_Atom<T>{};
    else return UMMA::Layout_MN_SW128_32B_Atom<T>{};
  } else {
    if constexpr (mode == none) return UMMA::Layout_K_INTER_Atom<T>{};
    else if constexpr (mode == b32) return UMMA::Layout_K_SW32_Atom<T>{};
    else if constexpr (mode == b64) return UMMA::Layout_K_SW64_Atom<T>{};
    else return UMMA::Layout_K_SW128_Atom<T>{};
  }
}

template <class T, bool MN, Mode mode> constexpr auto sparse_atom() {
  if constexpr (MN) {
    if constexpr (mode == none) return UMMA::Layout_MN_INTER_SpAtom<T, 2>{};
    else if constexpr (mode == b32) return UMMA::Layout_MN_SW32_SpAtom<T, 2>{};
    else if constexpr (mode == b64) return UMMA::Layout_MN_SW64_SpAtom<T, 2>{};
    else if constexpr (mode == b128) return UMMA::Layout_MN_SW128_SpAtom<T, 2>{};
    else return UMMA::Layout_MN_SW128_32B_SpAtom<T, 2>{};
  } else {
    if constexpr (mode == none) return UMMA::Layout_K_INTER_SpAtom<T, 2>{};
    else if constexpr (mode == b32) return UMMA::Layout_K_SW32_SpAtom<T, 2>{};
    else if constexpr (mode == b64) return UMMA::Layout_K_SW64_SpAtom<T, 2>{};
    else return UMMA::Layout_K_SW128_SpAtom<T, 2>{};
  }
}

// Tiles of rows x columns elements; atoms follow each other along rows first, or (across) along columns first. With
// sparse, columns count logical elements, of which half are stored. Each part has part_rows x part_columns. `start` is
// the shared address.
template <int arch, class T, bool MN, Mode mode, bool across, bool sparse, int rows, int columns, int part_rows,
          int part_columns>
void tile(uint32_t start) {
  auto atom = [] {
    if constexpr (sparse) return sparse_atom<T, MN, mode>();
    else return dense_atom<T, MN, mode>();
  }();
  using Order = std::conditional_t<across, Step<_2, _1>, Step<_1, _2>>;
  auto layout = tile_to_shape(atom, Shape<Int<rows>, Int<columns>>{}, Order{});
  using Element = std::conditional_t<sparse, sparse_elem<2, T>, T>;
  auto tensor = make_tensor(make_smem_ptr(recast_ptr<Element>(reinterpret_cast<void*>(size_t(start)))), layout);

  uint64_t sum = 0;
  if constexpr (!sparse) {
    auto plain = as_position_independent_swizzle_layout(layout);
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < columns; ++j)
        sum += uint64_t(plain(i, j) * sizeof_bits_v<T>) * (2 * uint64_t(i * columns + j) + 1);
  }
  printf("tile %d %s %s %s %d %d %d %d %d %d %u %llu\n", arch, Name<T>::value, MN ? "MN" : "K", mode_names[mode], across,
         sparse, rows, columns, part_rows, part_columns, start, (unsigned long long)sum);

  auto parts = tiled_divide(tensor, Shape<Int<part_rows>, Int<part_columns>>{});
  auto fragment = [&] {
    if constexpr (arch == 90) {
      constexpr auto major = MN ? GMMA::Major::MN : GMMA::Major::K;
      if constexpr (sparse) return make_tensor<GMMA::sparse_smem_desc<major>>(parts);
      else return make_tensor<GMMA::smem_desc<major>>(parts);
    } else {
      constexpr auto major = MN ? UMMA::Major::MN : UMMA::Major::K;
      if constexpr (sparse) return make_tensor<UMMA::sparse_smem_desc<major>>(parts);
      else return make_tensor<UMMA::smem_desc<major>>(parts);
    }
  }();
  for (int i = 0; i < rows / part_rows; ++i)
    for (int j = 0; j < columns / part_columns; ++j)
      printf("part %d %d %llu\n", i * part_rows, j * part_columns, (unsigned long long)uint64_t(fragment(0, i, j)));
}
}  // namespace oracle
