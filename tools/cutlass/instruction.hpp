// Prints the instruction descriptors that CuTe makes, one number a line. Knows nothing of ours.
#pragma once
#include "smem.hpp"

namespace oracle {

template <class A, class B, class D, int M, int N, int a_major, int b_major, int a_negate, int b_negate, int saturate,
          int sparse, int shift>
void plain(int selector) {
  printf("%llu\n", (unsigned long long)(UMMA::make_runtime_instr_desc<
                                            A, B, D, M, N, UMMA::Major(a_major), UMMA::Major(b_major),
                                            UMMA::ScaleIn(a_negate), UMMA::ScaleIn(b_negate), UMMA::Saturate(saturate),
                                            bool(sparse), UMMA::MaxShift(shift)>(selector) >>
                                        32));
}

template <class A, class B, class S, int M, int N, int a_major, int b_major, int a_negate, int b_negate, int sparse>
void scaled(uint32_t a_id, uint32_t b_id, int k96) {
  auto made = UMMA::make_instr_desc_block_scaled<A, B, float, S, M, N, UMMA::Major(a_major), UMMA::Major(b_major),
                                                 UMMA::ScaleIn(a_negate), UMMA::ScaleIn(b_negate), bool(sparse)>();
  made.k_size_ = k96;
  uint64_t word = UMMA::make_runtime_instr_desc_block_scaled<bool(sparse)>(made, a_id << 30, b_id << 30);
  printf("%llu\n", (unsigned long long)(word >> 32));
}
}  // namespace oracle
