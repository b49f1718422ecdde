#ifdef __AVX512F__
#include "kernels.inl"

const li::quantize::Kernels* li::quantize::kernels_avx512() { return &kTable; }
#else
#include "kernels.h"

const li::quantize::Kernels* li::quantize::kernels_avx512() { return nullptr; }
#endif
